// Package topic decides when a relay sends a topic's events to the broker: not while an operator has paused the topic, and after an
// outage one shard at a time. It does no I/O, has no clock and starts no goroutine.
package topic

import (
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/backoff"
)

// Topic is a relay's state of a topic, for all its shards. While the broker does not accept the topic's events, one shard at a time sends
// a probe, after a backoff. It is not safe for concurrent use.
type Topic struct {
	Name   string
	To     string // the topic that its events are published to
	Paused int64  // by an operator; 0: it is not

	lastSuccess time.Time // when the broker last accepted an event
	failing     time.Time // since when it has accepted none; zero: it does
	err         error     // why

	stands bool      // the broker accepts none of its events
	since  time.Time // when that began
	retry  backoff.Backoff
	asking bool // a probe is in flight

	reasons   []string  // errors of events that were published later
	retryDead time.Time // no retry of dead events before this time
	retrying  bool      // such a retry is running
}

// Stands reports whether no batch may be sent now.
func (t *Topic) Stands(now time.Time) bool {
	return t.Paused != 0 || t.stands && (t.asking || t.retry.Until.After(now))
}

// Waits reports whether the topic is paused, or the broker accepted none of its events when it was last asked.
func (t *Topic) Waits() bool { return t.Paused != 0 || t.stands }

// Next returns when to probe a standing topic. Zero means that an operator or the answer to a probe decides.
func (t *Topic) Next() time.Time {
	if t.Paused != 0 || t.asking {
		return time.Time{}
	}
	return t.retry.Until
}

// Ask records that a batch is sent. It reports whether the batch is a probe: then no other batch of the topic is sent until EndAsk.
func (t *Topic) Ask() bool {
	t.asking = t.asking || t.stands
	return t.stands
}

// EndAsk lets another shard send a probe.
func (t *Topic) EndAsk() { t.asking = false }

// Asking reports whether a probe is in flight.
func (t *Topic) Asking() bool { return t.asking }

// Failed records that the broker accepted no event of a batch.
func (t *Topic) Failed(err error, now time.Time) {
	if t.failing.IsZero() {
		t.failing = now
	}
	t.err = err
}

// Took records that the broker accepted an event.
func (t *Topic) Took(now time.Time) {
	t.lastSuccess = now
	t.Heard()
}

// LastSuccess returns when the broker last accepted an event.
func (t *Topic) LastSuccess() time.Time { return t.lastSuccess }

// Heard records that the broker accepted an event or rejected that event itself.
func (t *Topic) Heard() { t.failing, t.err = time.Time{}, nil }

// Outage records that the broker accepted no event of a batch, through no fault of the events. It reports whether the topic stands from
// now on.
func (t *Topic) Outage(err error, jitter func(time.Duration) time.Duration, now time.Time) (begins bool) {
	t.Failed(err, now)
	if begins = !t.stands; begins {
		t.stands, t.since = true, now
	}
	t.Unclear(jitter, now)
	return begins
}

// Unclear records that nobody knows whether the broker or an event was at fault. A topic that stands goes on to stand.
func (t *Topic) Unclear(jitter func(time.Duration) time.Duration, now time.Time) {
	if t.stands {
		t.retry.Failed(backoff.First, backoff.MostOfTopic, jitter, now)
	}
}

// Answered records that the broker accepted an event or rejected that event itself, so the topic is available. It reports whether the
// topic stood, and for how long.
func (t *Topic) Answered(now time.Time) (stood bool, how time.Duration) {
	if !t.stands {
		return false, 0
	}
	t.stands = false
	t.retry.OK()
	return true, now.Sub(t.since)
}

// Recovered records that an event was published that had failed with that error before.
func (t *Topic) Recovered(reason string) {
	if reason != "" && len(t.reasons) < maxReasons && !slices.Contains(t.reasons, reason) {
		t.reasons = append(t.reasons, reason)
	}
}
