// Package circuit decides when a consumer pauses because a dependency of its handler is down, and when it continues. It has no
// clock and no locks.
package circuit

import "time"

// Config configures a Breaker.
type Config struct {
	Failures        int // in a row, each of another event than the one before, before the consumer pauses
	Pause, MaxPause time.Duration
	Jitter          func(time.Duration) time.Duration
}

// Breaker is the circuit breaker of one consumer. While the consumer is paused, one event at a time is tried, after each pause.
type Breaker struct {
	cfg Config

	failures int    // in a row, each of another event than the one before
	last     string // the event that failed last
	err      error  // of the last failure

	since      time.Time // start of the pause; zero: not paused
	until      time.Time // no event is tried before this time
	tried      int       // failed tries of this pause
	probe      string    // the event being tried, "" if none
	turnedAway bool      // the broker delivered an event during this pause
}

// New returns a breaker of a consumer that is not paused.
func New(cfg Config) *Breaker { return &Breaker{cfg: cfg} }

// Paused returns when the pause began, and the error of the last failure. The time is zero if the consumer is not paused.
func (b *Breaker) Paused() (since time.Time, err error) { return b.since, b.err }

// Until returns when the next event may be tried, if the consumer is paused.
func (b *Breaker) Until() time.Time { return b.until }

// Admit reports whether the event may be handled now. If not, wait is the delay of its redelivery. After a pause, the first event
// is tried. Done must follow for each admitted event.
func (b *Breaker) Admit(event string, fromBroker bool, now time.Time) (wait time.Duration, admitted bool) {
	switch {
	case b.since.IsZero():
		return 0, true
	case b.probe == "" && !now.Before(b.until):
		b.probe, b.turnedAway = event, false
		return 0, true
	}
	b.turnedAway = b.turnedAway || fromBroker
	return b.wait(now), false
}

// wait returns the time until another event may be tried.
func (b *Breaker) wait(now time.Time) time.Duration {
	if b.probe != "" {
		return b.cfg.Pause
	}
	return max(b.until.Sub(now), 0)
}

// Retries returns how many events that have failed before may be retried, at most room. While paused, it allows one, after the
// pause: at once if the broker has delivered no event since, otherwise MaxPause later. An event that failed before may itself be
// the cause.
func (b *Breaker) Retries(room int, now time.Time) int {
	switch {
	case b.since.IsZero():
		return room
	case b.probe != "" || now.Before(b.until), b.turnedAway && now.Before(b.until.Add(b.cfg.MaxPause)):
		return 0
	}
	return min(room, 1)
}

// Verdict is the meaning of a failure.
type Verdict int

const (
	// Counts means that the failure is the event's own, as far as is known.
	Counts Verdict = iota
	// Doubtful means that another event failed just before. This must not be the event's last attempt.
	Doubtful
	// Pauses means that the consumer pauses now. The failure does not count against the event.
	Pauses
	// Spared means that the consumer was paused already. The failure does not count against the event.
	Spared
)

// Failed records a failure of an event that a dependency may have caused.
func (b *Breaker) Failed(event string, err error, now time.Time) Verdict {
	b.err = err
	if !b.since.IsZero() {
		if b.probe == event {
			b.probe = ""
			b.pause(now)
		}
		return Spared
	}
	if b.failures == 0 || event != b.last {
		b.failures++
	}
	b.last = event
	switch {
	case b.failures >= b.cfg.Failures:
		b.since = now
		b.pause(now)
		return Pauses
	case b.failures > 1:
		return Doubtful
	}
	return Counts
}

// pause starts a pause, twice as long as the one before, up to MaxPause.
func (b *Breaker) pause(now time.Time) {
	d := min(b.cfg.Pause<<min(b.tried, 20), b.cfg.MaxPause)
	b.tried++
	b.until = now.Add(b.cfg.Jitter(d))
}

// Succeeded records that an event was handled. It returns the length of the pause that this ends, if there was one.
func (b *Breaker) Succeeded(now time.Time) (paused time.Duration, was bool) {
	if was = !b.since.IsZero(); was {
		paused = now.Sub(b.since)
	}
	*b = Breaker{cfg: b.cfg}
	return paused, was
}

// Done records that an admitted event has ended. If it was the one being tried, and it neither failed nor succeeded, another event
// may be tried at once.
func (b *Breaker) Done(event string) {
	if b.probe == event {
		b.probe = ""
	}
}
