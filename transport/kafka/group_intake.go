package kafka

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

// intake is what a subscription reads of one partition. It outlives the claims by which the group gives the partition to
// this process and takes it away, because handlers may.
type intake struct {
	*subscription
	number int32
	wake   chan struct{} // there may be something to deliver
	next   atomic.Int64  // what is below is done; negative: unknown
	paused atomic.Bool

	mu   sync.Mutex
	lane *lane
	mark func(next int64) // tells the group's session up to where everything is done; nil without a claim
	txn  *claimed         // commits what is done, instead; nil without a claim
}

func newIntake(s *subscription, number int32) *intake {
	return &intake{
		subscription: s,
		number:       number,
		wake:         make(chan struct{}, 1),
		lane:         newLane(s.config.Ordered, bounds{records: s.config.Concurrency + s.settings.Prefetch, bytes: prefetchBytes}),
	}
}

// consume delivers the claim's messages until the claim ends. Handlers that still run then do not hold up the group for
// longer than handOverTimeout; what they ack later is not marked.
func (in *intake) consume(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) {
	in.begin(session, claim)
	defer in.end()
	in.deliver(session.Context(), claim)
	if in.stopped() && session.Context().Err() == nil {
		in.linger(session.Context(), claim)
	}
	if keeps(session.Context()) {
		in.handOver()
	}
	if in.txn != nil && !expelled(session.Context()) {
		in.txn.flush()
	}
}

// keeps tells whether the group still counts the partition as this process's, so that its offsets can be committed.
func keeps(session context.Context) bool {
	cause := context.Cause(session)
	return cause == nil || // it is this partition that is to go
		errors.Is(cause, sarama.ErrRebalanceInProgress) ||
		errors.Is(cause, sarama.ErrSessionPartitionCountChanged) ||
		errors.Is(cause, sarama.ErrSessionConsumeClaimExited)
}

// expelled tells whether the group has certainly given the partition to another member.
func expelled(session context.Context) bool {
	cause := context.Cause(session)
	return errors.Is(cause, sarama.ErrUnknownMemberId) ||
		errors.Is(cause, sarama.ErrIllegalGeneration) ||
		errors.Is(cause, sarama.ErrFencedInstancedId)
}

func (in *intake) begin(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.lane.resume(claim.InitialOffset())
	in.next.Store(claim.InitialOffset())
	if in.committer != nil {
		in.txn = in.committer.claim(session, in.number, in.wake)
	} else {
		in.mark = func(next int64) { session.MarkOffset(in.topic, in.number, next, "") }
	}
	in.flow(false)
	in.observer.assigned(in, claim)
}

func (in *intake) end() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.mark = nil
	if in.txn != nil {
		in.txn.end()
		in.txn = nil
	}
	in.lane.suspend()
	in.observer.revoked(in)
}

// pauseAfter is for how long a partition may be full before its reading is paused. sarama sleeps for 100 ms when all that
// it reads of a broker is paused, which handlers that are quick would wait for again and again. Until then what it has
// read waits in its channel: 256 records, too many where they are large, so that one full of bytes is paused at once.
const pauseAfter = 100 * time.Millisecond

// deliver hands the partition's messages to handlers until the session, the claim or the subscription ends.
func (in *intake) deliver(session context.Context, claim sarama.ConsumerGroupClaim) {
	w := &watch{in: in}
	defer w.shut()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var alarm time.Time // when the timer goes off, or has
	var since time.Time // when it became full
	paused, slot := false, false
	for !in.stopped() {
		now := time.Now()
		w.collect(now)
		o := w.start(now, slot)
		slot = false
		due := o.due
		switch {
		case !o.full:
			since = time.Time{}
		case since.IsZero():
			since = now
		}
		if pause := o.full && (paused || o.heavy || now.Sub(since) >= pauseAfter); pause != paused {
			paused = pause
			in.flow(paused)
		}
		records := claim.Messages()
		if o.full && !paused {
			records = nil // also for the end of the claim, until then
			due = earlier(due, since.Add(pauseAfter))
		}
		due = earlier(due, w.due(now))
		if !due.IsZero() && (due.Before(alarm) || !alarm.After(now)) {
			alarm = due
			timer.Reset(due.Sub(now))
		}
		slots := in.slots
		if !o.starved {
			slots = nil
		}
		var acked, nacked <-chan struct{}
		if next := w.next(); next != nil {
			acked, nacked = next.Acked(), next.Nacked()
		}
		select {
		case record, ok := <-records:
			if !ok {
				return
			}
			in.push(record)
			if ended := in.pushMore(records); ended {
				return
			}
		case <-acked:
		case <-nacked:
		case slots <- struct{}{}:
			slot = true
		case <-in.wake:
		case <-timer.C:
		case <-in.stop:
		case <-in.lost():
			return
		case <-session.Done():
			return
		}
	}
	if slot {
		<-in.slots
	}
}

// pushMore adds some more records that have been read, because each turn of deliver has its price. It tells whether they
// have ended.
func (in *intake) pushMore(records <-chan *sarama.ConsumerMessage) (ended bool) {
	for range turn - 1 {
		select {
		case record, ok := <-records:
			if !ok {
				return true
			}
			in.push(record)
		default:
			return false
		}
	}
	return false
}

// push adds a record that has been read.
func (in *intake) push(record *sarama.ConsumerMessage) {
	e := &entry{offset: record.Offset, bytes: len(record.Key) + len(record.Value), value: record}
	if in.config.Ordered {
		e.key = string(record.Key)
	}
	for _, header := range record.Headers {
		e.bytes += len(header.Key) + len(header.Value)
		if string(header.Key) == idHeader {
			e.identity = string(header.Value)
		}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.next.Load() < 0 {
		in.next.Store(record.Offset) // where a group without an offset begins
	}
	in.release(in.lane.push(e))
}

// release marks what is done, or commits it with what its handlers have published. The caller holds mu.
func (in *intake) release(entries []*entry) {
	if len(entries) == 0 {
		return
	}
	next := entries[len(entries)-1].offset + 1
	switch {
	case in.mark != nil:
		in.next.Store(next)
		in.mark(next)
	case in.txn != nil:
		in.next.Store(next)
		in.txn.add(entries)
	}
}

// lost is closed when a transaction has found that the partition is another member's.
func (in *intake) lost() <-chan struct{} {
	if in.txn == nil {
		return nil
	}
	return in.txn.lost
}

// linger keeps the claim of a draining subscription until it is revoked: so long acks are marked.
func (in *intake) linger(session context.Context, claim sarama.ConsumerGroupClaim) {
	for {
		select {
		case _, ok := <-claim.Messages(): // not delivered and not marked
			if !ok {
				return
			}
		case <-in.lost():
			return
		case <-session.Done():
			return
		}
	}
}

// handOver waits for running handlers, but not for slow ones.
func (in *intake) handOver() {
	timeout := time.NewTimer(handOverTimeout)
	defer timeout.Stop()
	for {
		in.mu.Lock()
		taken := in.lane.taken
		in.mu.Unlock()
		if taken == 0 {
			return
		}
		select {
		case <-in.wake:
		case <-timeout.C:
			return
		}
	}
}

// flow stops or resumes the reading of the partition.
func (in *intake) flow(stop bool) {
	in.paused.Store(stop)
	these := map[string][]int32{in.topic: {in.number}}
	if stop {
		in.group.Pause(these)
	} else {
		in.group.Resume(these)
	}
}

// update changes the lane and wakes the claim.
func (in *intake) update(f func(*lane)) {
	in.mu.Lock()
	f(in.lane)
	in.mu.Unlock()
	in.wakeUp()
}

func (in *intake) wakeUp() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}
