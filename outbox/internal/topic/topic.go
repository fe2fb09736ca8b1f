// Package topic decides when a relay asks the broker to take a topic's events: not while an operator has paused the topic, and after
// an outage one shard at a time. It does no I/O, has no clock and starts no goroutine.
package topic

import (
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/backoff"
)

// Topic is what a relay knows of a topic, in all its shards. While the broker does not take it, one shard at a time asks again, after
// a backoff. One goroutine uses it.
type Topic struct {
	Name   string
	To     string // the topic that its events are published to
	Paused int64  // by an operator; 0: it is not

	lastSuccess time.Time // when the broker last took an event
	failing     time.Time // since when it has taken none; zero: it does
	err         error     // why

	stands bool      // the broker takes nothing of it
	since  time.Time // when that began
	retry  backoff.Backoff
	asking bool // a batch asks

	reasons   []string  // errors that events have failed with that were published later
	retryDead time.Time // no retry of dead events before
	retrying  bool      // one is under way
}

// Stands reports whether no batch may be sent now.
func (t *Topic) Stands(now time.Time) bool {
	return t.Paused != 0 || t.stands && (t.asking || t.retry.Until.After(now))
}

// Next is when a topic that stands is asked again; zero: an operator or the answer of the batch that asks tells.
func (t *Topic) Next() time.Time {
	if t.Paused != 0 || t.asking {
		return time.Time{}
	}
	return t.retry.Until
}

// Ask notes that a batch is sent. It reports whether the batch asks if the topic gets on: then nothing else of it is sent until
// EndAsk.
func (t *Topic) Ask() bool {
	t.asking = t.asking || t.stands
	return t.stands
}

// EndAsk lets another shard ask.
func (t *Topic) EndAsk() { t.asking = false }

// Asking reports whether a batch asks if the topic gets on.
func (t *Topic) Asking() bool { return t.asking }

// Failed notes that the broker took nothing of a batch.
func (t *Topic) Failed(err error, now time.Time) {
	if t.failing.IsZero() {
		t.failing = now
	}
	if err != nil {
		t.err = err
	}
}

// Took notes that the broker took an event.
func (t *Topic) Took(now time.Time) {
	t.lastSuccess = now
	t.Heard()
}

// LastSuccess is when the broker last took an event.
func (t *Topic) LastSuccess() time.Time { return t.lastSuccess }

// Heard notes that the broker took an event or refused it for its own sake.
func (t *Topic) Heard() { t.failing, t.err = time.Time{}, nil }

// Outage notes that the broker took nothing of a batch, for no fault of its events. It reports whether the topic stands from now on.
func (t *Topic) Outage(err error, jitter func(time.Duration) time.Duration, now time.Time) (begins bool) {
	t.Failed(err, now)
	t.retry.Failed(backoff.First, backoff.MostOfTopic, jitter, now)
	if begins = !t.stands; begins {
		t.stands, t.since = true, now
	}
	return begins
}

// Answered notes that the broker took an event, or refused it for its own sake: the topic is there. It reports whether the topic had
// stood, and for how long.
func (t *Topic) Answered(now time.Time) (stood bool, how time.Duration) {
	if !t.stands {
		return false, 0
	}
	t.stands = false
	t.retry.OK()
	return true, now.Sub(t.since)
}

// Recovered notes that an event was published that had failed with that error before.
func (t *Topic) Recovered(reason string) {
	if reason != "" && len(t.reasons) < maxReasons && !slices.Contains(t.reasons, reason) {
		t.reasons = append(t.reasons, reason)
	}
}
