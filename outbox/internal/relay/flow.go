package relay

import (
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/backoff"
	"github.com/millrace-go/millrace/outbox/internal/budget"
	"github.com/millrace-go/millrace/outbox/internal/deferral"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/topic"
)

// A topic must not take what other topics need to make progress. In each shard a topic has a share of the events in flight, a quota of
// the events held, and a quota of their payloads' bytes.

const (
	// batchBytes bounds the payloads that one read of a shard returns, that one batch sends, and that a shard holds of a topic. One
	// larger event is allowed.
	batchBytes = budget.Most
	// maxBytes bounds the payloads that the relay holds, without those in flight to stuck topics.
	maxBytes = 4 * batchBytes
	// slow is how long a batch may be in flight before its topic counts as slow.
	slow = 250 * time.Millisecond
	// maxSingles is how many events are passed at once to a publisher that does not take batches.
	maxSingles = 100
)

// queue is a topic queue: the events of one topic in a shard. At most one batch of it is in flight.
type queue struct {
	topic   *topic.Topic
	ready   []*step.Event // in order
	sending []*step.Event
	failed  [][]step.FailedRow // due failed events, by key
	retries []step.FailedRow   // failed events that are being sent
	groups  [][]step.FailedRow // the groups that retries were taken from
	since   time.Time          // when the batch was sent
	gathers time.Time          // since when events wait for others to join their transaction; zero: they do not

	retry backoff.Backoff // after a batch of which nothing was sent

	held      int // events of the topic in the shard's memory
	bytes     int // of their payloads
	bare      int // events held without their payload
	unsaved   int // events that are being sent, or sent and not deleted
	window    int // how many may be in flight
	deferred  deferral.Deferral
	retried   bool      // the last batch had failed events
	wasSlow   bool      // the last batch was slow
	slowSince time.Time // when the first of the consecutive slow batches was sent
	probe     bool      // the batch checks whether the broker takes the topic again
}

// busy reports whether a batch is in flight.
func (q *queue) busy() bool { return len(q.sending)+len(q.retries) > 0 }

// gather returns until when events wait for others to join their transaction: until next, which the answers to other topics put off, but
// for no longer than most.
func (q *queue) gather(next time.Time, most time.Duration, now time.Time) time.Time {
	if q.gathers.IsZero() {
		q.gathers = now
	}
	return backoff.Earliest(next, q.gathers.Add(most))
}

// send records that a batch is sent.
func (q *queue) send(now time.Time) {
	q.since = now
	q.probe = q.topic.Ask()
}

// settled records that the batch was answered.
func (q *queue) settled(now time.Time) {
	if now.Sub(q.since) <= slow {
		q.slowSince = time.Time{}
	} else if !q.wasSlow {
		q.slowSince = q.since
	}
	q.wasSlow = now.Sub(q.since) > slow
	q.endProbe()
}

// endProbe lets another shard probe the topic.
func (q *queue) endProbe() {
	if q.probe {
		q.probe = false
		q.topic.EndAsk()
	}
}

// slow reports whether the topic takes its batches slowly.
func (q *queue) slow(now time.Time) bool {
	return q.wasSlow && q.topic.Paused == 0 || q.busy() && now.Sub(q.since) > slow
}

// stuck reports whether the queue makes no progress now.
func (q *queue) stuck(now time.Time) bool {
	return q.retry.Until.After(now) || q.topic.Stands(now) || q.busy() && now.Sub(q.since) > slow
}

// empty reports whether the queue holds nothing worth keeping.
func (q *queue) empty() bool {
	return q.held == 0 && !q.busy() && len(q.failed) == 0 && q.unsaved == 0 && q.retry.Wait == 0 && !q.deferred.Any()
}

// share is how many events of one topic may be in flight in a shard. It is half of all, so that other topics have room beside a stuck
// one.
func (c *Core) share() int { return max(1, c.cfg.MaxInFlight/2) }

// quota is how many events of one topic a shard holds. Further events stay in the table and are read when there is room.
func (c *Core) quota() int { return max(4*c.cfg.BatchSize, 64) }

// quota is less while the topic waits: probes need few events, and those held cost the other topics time and memory. It is not less if
// all events held wait for others, so that one is found that can be a probe.
func (q *queue) quota(c *Core) int {
	if q.topic.Waits() && len(q.ready)+len(q.sending) > 0 {
		return max(1, c.rules.quota(c)/16)
	}
	return c.rules.quota(c)
}

// room returns how many events the queue may send now. wait says to wait for deletes first.
func (s *shard) room(q *queue, now time.Time) (n int, wait bool) {
	c := s.core
	share, free := c.share(), c.cfg.MaxInFlight-s.unsaved
	limit := min(q.window, share)
	if q.slow(now) { // slow topics share half of the room
		count := 0
		for _, o := range s.order {
			if o.slow(now) {
				count++
			}
		}
		limit = min(limit, max(1, share/max(count, 1)))
	}
	n = min(limit-q.unsaved, free, c.cfg.BatchSize)
	if !c.cfg.Batches {
		n = min(n, maxSingles)
	}
	most := min(limit, c.cfg.BatchSize, max(len(q.ready), 1))
	return n, n <= 0 || 2*n < most && q.unsaved > 0
}

// drained records that the deferred events up to a number were read, or as many as were asked for.
func (s *shard) drained(q *queue, r step.Request, rows []*step.Event) {
	if !q.deferred.Any() {
		return
	}
	last := int64(0)
	if len(rows) >= r.DrainLimit {
		last = rows[len(rows)-1].Seq
	}
	q.deferred.Drained(r.From, last)
	s.unstall()
}

// scanned records that a scan has read every row above a number.
func (s *shard) scanned(scan int64) {
	for _, q := range s.order {
		q.deferred.Scanned(scan)
	}
}

// waitsForDeferred reports whether an earlier event of the key, for another topic, was left in the table.
func (s *shard) waitsForDeferred(e *step.Event) bool {
	if s.deferring == 0 {
		return false
	}
	h := deferral.Hash(e.Key)
	return slices.ContainsFunc(s.order, func(q *queue) bool { return q != queueOf(e) && q.deferred.Precedes(h, e.Seq) })
}

// drain chooses the topic whose deferred events are read next.
func (s *shard) drain(now time.Time) *queue {
	if s.deferring == 0 {
		return nil
	}
	for _, q := range s.order {
		if q.deferred.Any() && q.deferred.From() <= s.gaps.From() && q.held <= q.quota(s.core)/2 && !q.stuck(now) {
			return q
		}
	}
	return nil
}
