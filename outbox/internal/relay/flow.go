package relay

import (
	"hash/maphash"
	"time"
)

// A topic must not take from others what they need to get on. In each shard a topic has a share of the events in flight, a
// quota of the events held, and a quota of their payloads' bytes.

const (
	// batchBytes bounds what is read of a shard at once, what one batch sends, and the payloads of a topic that a shard
	// holds, one larger event apart.
	batchBytes = 16 << 20
	// maxBytes bounds the payloads that the relay holds, except those in flight to topics that are stuck.
	maxBytes = 4 * batchBytes
	// slow is how long a batch is in flight before its topic counts as slow.
	slow = 250 * time.Millisecond
	// maxSingles is how many events a publisher without batches gets at once.
	maxSingles = 100
	// maxDeferredKeys is how many keys of a topic's deferred events are told apart; beyond it every key counts as one.
	maxDeferredKeys = 1_000_000
)

// queue is a topic queue: what a shard holds of one topic. One batch of it is in flight at a time.
type queue struct {
	topic   *topic
	ready   []*Event // in order
	sending []*Event
	failed  [][]FailedRow // due failed events, by key
	retries []FailedRow   // failed events that are being sent
	groups  [][]FailedRow // what retries were taken from
	since   time.Time     // when the batch was sent

	wait  time.Duration // backoff after a batch of which nothing was sent
	until time.Time

	held      int // events of the topic in the shard's memory
	bytes     int // of their payloads
	unsaved   int // events that are in flight: being sent, or sent and not deleted
	window    int // how many may be in flight
	last      int64
	deferred  deferral
	retried   bool      // the last batch was of failed events
	wasSlow   bool      // the last batch was
	slowSince time.Time // when the first one of slow batches was sent
	probe     bool      // the batch asks whether the topic gets on again
}

// busy reports whether a batch is in flight.
func (q *queue) busy() bool { return len(q.sending)+len(q.retries) > 0 }

// send notes that a batch is sent.
func (q *queue) send(now time.Time) {
	q.since = now
	if q.topic.failures > 0 {
		q.probe, q.topic.probing = true, true
	}
}

// settled notes that the batch was answered.
func (q *queue) settled(now time.Time) {
	if now.Sub(q.since) <= slow {
		q.slowSince = time.Time{}
	} else if !q.wasSlow {
		q.slowSince = q.since
	}
	q.wasSlow = now.Sub(q.since) > slow
	q.endProbe()
}

// endProbe lets another shard ask whether the topic gets on.
func (q *queue) endProbe() {
	if q.probe {
		q.probe, q.topic.probing = false, false
	}
}

// slow reports whether the topic takes its batches slowly.
func (q *queue) slow(now time.Time) bool {
	return q.wasSlow && q.topic.paused == 0 || q.busy() && now.Sub(q.since) > slow
}

// stuck reports whether the queue does not get on now.
func (q *queue) stuck(now time.Time) bool {
	return q.until.After(now) || q.topic.stands(now) || q.busy() && now.Sub(q.since) > slow
}

// empty reports whether nothing is known of the topic that is worth keeping.
func (q *queue) empty() bool {
	return q.held == 0 && !q.busy() && len(q.failed) == 0 && q.unsaved == 0 && q.wait == 0 && !q.deferred.any
}

// share is how many events of one topic may be in flight in a shard: half of all, so that others find room beside a topic
// that does not get on.
func (c *Core) share() int { return max(1, c.cfg.MaxInFlight/2) }

// quota is how many events of one topic a shard holds. What exceeds it stays in the table, and is read when there is room.
func (c *Core) quota() int { return max(4*c.cfg.BatchSize, 64) }

// crowded reports whether events that cannot be published now use up much of what the shard may hold of the topic: it does not read
// what exceeds that. They then go to the failed ones.
func (s *shard) crowded(q *queue) bool {
	lost := 0
	for _, k := range s.keys {
		if k.queue == q && !k.lost.IsZero() {
			lost += k.pending + len(k.waiting)
		}
	}
	return lost > s.core.rules.quota(s.core)/4
}

// room is how many events the queue may send now. wait reports that it is worth waiting for deletes first.
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

// deferral is the part of a topic's events that a shard leaves in the table because its quota is used up.
type deferral struct {
	any     bool
	from    int64            // rows below it were taken
	to      int64            // the highest number
	keys    map[uint64]int64 // keys of deferred rows, with the first number of each
	refused bool             // one was deferred by the read that is being taken
	all     bool             // there are too many keys to tell them apart
}

var seed = maphash.MakeSeed()

// admit reports whether the shard may hold a row that it does not hold yet. Otherwise the row is deferred. A scan returns
// the deferred rows again, in order.
func (s *shard) admit(q *queue, r *Event, scanning bool) bool {
	d := &q.deferred
	if scanning && d.any && r.Seq >= d.from && q.held < s.core.rules.quota(s.core) {
		d.from = r.Seq + 1
	}
	switch {
	case d.any && r.Seq < d.from, q.held < s.core.rules.quota(s.core) && !d.any, r.Seq < q.last && !d.any:
		q.last = max(q.last, r.Seq)
		return true
	case !d.any:
		*d = deferral{any: true, from: r.Seq, keys: map[uint64]int64{}}
		s.deferring++
	}
	d.to, d.refused = max(d.to, r.Seq), true
	if r.Key == "" || d.all {
		return false
	}
	h := maphash.String(seed, r.Key)
	if _, ok := d.keys[h]; !ok {
		d.keys[h] = r.Seq
	}
	if len(d.keys) > maxDeferredKeys {
		d.keys, d.all = nil, true
	}
	return false
}

// drained notes that the deferred events up to a number were read, or as many as were asked for.
func (s *shard) drained(q *queue, r Request, rows []*Event) {
	switch d := &q.deferred; {
	case !d.any:
		return
	case len(rows) >= r.DrainLimit && rows[len(rows)-1].Seq < d.to:
		d.from = rows[len(rows)-1].Seq + 1
	case r.From < d.to: // the rest is above what the reads know
		d.from = max(d.from, r.From+1)
	default:
		*d = deferral{}
		s.deferring--
	}
	s.unstall()
}

// scanned ends the deferral of each topic of which a scan deferred no row. The scan has read every row.
func (s *shard) scanned() {
	for _, q := range s.order {
		if q.deferred.any && !q.deferred.refused {
			q.deferred = deferral{}
			s.deferring--
		}
		q.deferred.refused = false
	}
	s.unstall()
}

// waitsForDeferred reports whether an earlier event of the key was left in the table, for another topic.
func (s *shard) waitsForDeferred(e *Event) bool {
	if s.deferring == 0 {
		return false
	}
	h := maphash.String(seed, e.Key)
	for _, q := range s.order {
		if d := &q.deferred; d.any && q != e.queue && d.from < e.Seq {
			if first, ok := d.keys[h]; d.all || ok && first < e.Seq {
				return true
			}
		}
	}
	return false
}

// drain chooses the topic whose deferred events are read next.
func (s *shard) drain(now time.Time) *queue {
	if s.deferring == 0 {
		return nil
	}
	for _, q := range s.order {
		if q.deferred.any && q.deferred.from <= s.gaps.From() && q.held <= s.core.rules.quota(s.core)/2 && !q.stuck(now) {
			return q
		}
	}
	return nil
}
