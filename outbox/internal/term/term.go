// Package term decides whether a process has been registered without interruption, without I/O and without a clock.
package term

import "time"

// Term is the time for which a process is registered. It lasts as long as each renewal comes before the previous one has expired. The
// zero Term has ended. It is not safe for concurrent use.
type Term struct {
	until time.Time
	n     int // counts the terms
}

// Renew extends the registration until a time. now is when the answer came.
func (t *Term) Renew(until, now time.Time) {
	if t.Over(now) {
		t.Break()
	}
	t.until = until
}

// Break begins another term: what began before it does not count.
func (t *Term) Break() { t.n++ }

// End ends the registration.
func (t *Term) End() { t.until = time.Time{} }

// Over reports whether the registration has ended. It compares monotonic and wall clock: the monotonic clock stops while a machine is
// suspended, and the wall clock may be set back.
func (t *Term) Over(now time.Time) bool {
	return now.After(t.until) || now.Round(0).After(t.until.Round(0))
}

// Number returns the number of this term.
func (t *Term) Number() int { return t.n }

// Lasts reports whether the term with that number still lasts.
func (t *Term) Lasts(number int, now time.Time) bool { return number == t.n && !t.Over(now) }
