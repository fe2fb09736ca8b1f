// Package circuit decides when a consumer pauses because what its handler needs is out, and when it goes on. It has no clock and
// no locks.
package circuit

import "time"

// Config configures a Breaker.
type Config struct {
	Failures        int // in a row, each of another event than the one before, until the consumer pauses
	Pause, MaxPause time.Duration
	Jitter          func(time.Duration) time.Duration
}

// Breaker is the circuit breaker of one consumer. While it is paused, one event at a time is tried, after each pause.
type Breaker struct {
	cfg Config

	failures int    // in a row, each of another event than the one before
	last     string // the event that failed last
	err      error  // why

	since      time.Time // when the pause began; zero: the consumer is not paused
	until      time.Time // no event is tried before
	tried      int       // in this pause
	probe      string    // the event that is tried now, "" if none is
	turnedAway bool      // the broker has brought an event in this pause
}

// New returns a breaker of a consumer that is not paused.
func New(cfg Config) *Breaker { return &Breaker{cfg: cfg} }

// Paused returns since when the consumer is paused, and the error of the event that failed last. The time is zero if it is not.
func (b *Breaker) Paused() (since time.Time, err error) { return b.since, b.err }

// Until returns when the next event is tried, if the breaker is paused.
func (b *Breaker) Until() time.Time { return b.until }

// Admit reports whether the event may be handled now, and in which time it may come again otherwise. The first event after a pause is
// tried. Done must follow for each event that was admitted.
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

// wait is in which time another event may be tried.
func (b *Breaker) wait(now time.Time) time.Duration {
	if b.probe != "" {
		return b.cfg.Pause
	}
	return max(b.until.Sub(now), 0)
}

// Retries returns how many events that have failed before may be brought back, with so much room for them. In a pause it is the one to be
// tried, when no other event has come from the broker, or MaxPause later: those that failed may be at fault themselves.
func (b *Breaker) Retries(room int, now time.Time) int {
	switch {
	case b.since.IsZero():
		return room
	case b.probe != "" || now.Before(b.until), b.turnedAway && now.Before(b.until.Add(b.cfg.MaxPause)):
		return 0
	}
	return min(room, 1)
}

// Verdict is what a failure means.
type Verdict int

const (
	// Counts means that the failure is the event's own as far as is known.
	Counts Verdict = iota
	// Doubtful means that another event failed just before. It must not be the event's last attempt.
	Doubtful
	// Pauses means that the consumer pauses from now on. The failure says nothing against the event.
	Pauses
	// Spared means that the consumer was paused before. The failure says nothing against the event.
	Spared
)

// Failed notes that the handling of an event failed in a way that may be the fault of what the handler needs.
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

// pause begins another pause, twice as long as the one before.
func (b *Breaker) pause(now time.Time) {
	d := min(b.cfg.Pause<<min(b.tried, 20), b.cfg.MaxPause)
	b.tried++
	b.until = now.Add(b.cfg.Jitter(d))
}

// Succeeded notes that an event was handled. It returns for how long the consumer was paused, 0 if it was not.
func (b *Breaker) Succeeded(now time.Time) (paused time.Duration, was bool) {
	if was = !b.since.IsZero(); was {
		paused = now.Sub(b.since)
	}
	*b = Breaker{cfg: b.cfg}
	return paused, was
}

// Done notes that nothing more is heard of an event that was admitted. If it was tried, and neither failed nor succeeded, another one
// may be tried at once.
func (b *Breaker) Done(event string) {
	if b.probe == event {
		b.probe = ""
	}
}
