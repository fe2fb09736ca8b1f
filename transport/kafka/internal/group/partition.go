package group

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport/kafka/internal/backoff"
	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/lane"
	"github.com/millrace-go/millrace/transport/kafka/internal/txn"
	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

// partitionConsumer is a subscription's state of one partition. It outlives the claims by which the group assigns and revokes the
// partition, because handlers may outlive them.
type partitionConsumer struct {
	*Subscription
	*topicConsumer
	number int32
	wake   chan struct{} // there may be something to deliver
	next   atomic.Int64  // everything below is done; negative: unknown
	paused atomic.Bool

	buffered atomic.Int64 // bytes of what is not done

	mu   sync.Mutex
	lane *lane.Lane
	mark func(next int64) // marks in the group's session that everything below next is done; nil without a claim
	txn  *txn.Partition   // commits what is done, in place of mark; nil without a claim
	solo solo             // used with txn
}

func newPartitionConsumer(s *Subscription, of *topicConsumer, number int32) *partitionConsumer {
	return &partitionConsumer{
		Subscription:  s,
		topicConsumer: of,
		number:        number,
		wake:          make(chan struct{}, 1),
		lane:          lane.New(s.config.Ordered, s.config.Concurrency+s.config.Prefetch),
	}
}

// consume delivers the claim's messages until the claim ends. Handlers that still run then delay the group for at most handOverTimeout;
// later acks are not marked.
func (p *partitionConsumer) consume(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim, note string) {
	start := p.startOf(session, claim)
	p.begin(session, claim, start, note)
	defer p.end()
	current, over := context.WithCancel(session.Context())
	var passing sync.WaitGroup
	passing.Go(func() { p.passMarkers(current, claim) })
	defer passing.Wait()
	defer over()
	p.deliver(session.Context(), claim)
	if p.stopped() && session.Context().Err() == nil {
		p.linger(session.Context(), claim)
	}
	if keeps(session.Context()) {
		p.handOver()
	}
	if p.txn != nil && !expelled(session.Context()) {
		p.giveBack()
		if !p.txn.Flush(conn.FlushTimeout) {
			p.log.Warn("a partition is given up before its last messages are committed: they are delivered again", slog.Int("partition", int(p.number)))
		}
	}
}

// keeps reports whether the group still assigns the partition to this process, so that its offsets can be committed.
func keeps(session context.Context) bool {
	cause := context.Cause(session)
	return cause == nil || // this partition is to be revoked
		errors.Is(cause, sarama.ErrRebalanceInProgress) ||
		errors.Is(cause, sarama.ErrSessionPartitionCountChanged) ||
		errors.Is(cause, errTopicsChanged) ||
		errors.Is(cause, sarama.ErrSessionConsumeClaimExited)
}

// expelled reports whether the group has certainly assigned the partition to another member.
func expelled(session context.Context) bool {
	cause := context.Cause(session)
	return errors.Is(cause, sarama.ErrUnknownMemberId) ||
		errors.Is(cause, sarama.ErrIllegalGeneration) ||
		errors.Is(cause, sarama.ErrFencedInstancedId)
}

func (p *partitionConsumer) begin(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim, start int64, note string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lane.Resume(start)
	p.next.Store(start)
	if p.committer != nil {
		p.txn = p.committer.Assign(session, p.topic, p.number, p.wake)
		p.guard(claim, note)
	} else {
		p.mark = func(next int64) { session.MarkOffset(p.topic, p.number, next, "") }
	}
	if start != claim.InitialOffset() { // out of range: commit what is done again
		p.release([]*lane.Entry{{Offset: start - 1}})
	}
	p.shared.Budget.Enter(p, time.Now())
	p.flow(false)
	p.observer.assigned(p, claim)
}

func (p *partitionConsumer) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mark = nil
	if p.txn != nil {
		p.txn.Revoke()
		p.txn = nil
		p.unguard()
	}
	p.lane.Suspend()
	p.shared.Budget.Leave(p, time.Now())
	p.buffered.Store(0)
	p.observer.revoked(p)
}

// pauseAfter is how long a partition may be full before its reading is paused. sarama sleeps for 100 ms if everything that it reads from
// a broker is paused, for which fast handlers would wait again and again. Until the pause, read records wait in its channel: 256 of them,
// too many if they are large, so a partition for which the budget has no room is paused at once.
const pauseAfter = 100 * time.Millisecond

// deliver delivers the partition's messages to handlers until the session, the claim or the subscription ends.
func (p *partitionConsumer) deliver(session context.Context, claim sarama.ConsumerGroupClaim) {
	w := &inFlight{partition: p}
	defer w.shut()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var alarm time.Time // when the timer fires, or has fired
	var since time.Time // since when it is full
	slot := false
	for !p.stopped() {
		now, paused := time.Now(), p.paused.Load() // the budget pauses it, too
		w.collect(now)
		o := w.start(now, slot)
		slot = false
		due := backoff.Earlier(o.due, o.again)
		switch {
		case !o.full:
			since = time.Time{}
		case since.IsZero():
			since = now
		}
		if pause := o.full && (paused || o.heavy || now.Sub(since) >= pauseAfter); pause != paused {
			paused = pause
			p.flow(paused)
		}
		records := claim.Messages()
		if o.full && !paused {
			records = nil // until then this also hides the end of the claim
			due = backoff.Earlier(due, since.Add(pauseAfter))
		}
		due = backoff.Earlier(due, w.due(now))
		if !due.IsZero() && (due.Before(alarm) || !alarm.After(now)) {
			alarm = due
			timer.Reset(due.Sub(now))
		}
		slots := p.slots
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
			p.push(record)
			if ended := p.pushMore(records); ended {
				return
			}
		case <-acked:
		case <-nacked:
		case slots <- struct{}{}:
			slot = true
		case <-p.wake:
		case <-timer.C:
		case <-p.stop:
		case <-p.lost():
			return
		case <-session.Done():
			return
		}
	}
	if slot {
		<-p.slots
	}
}

// pushMore adds further records that have been read, because each turn of deliver has a cost. It reports whether the records have ended.
func (p *partitionConsumer) pushMore(records <-chan *sarama.ConsumerMessage) (ended bool) {
	for range turn - 1 {
		select {
		case record, ok := <-records:
			if !ok {
				return true
			}
			p.push(record)
		default:
			return false
		}
	}
	return false
}

// push adds a record that has been read.
func (p *partitionConsumer) push(record *sarama.ConsumerMessage) {
	c := &consumed{record: record, key: string(record.Key)}
	e := &c.Entry
	e.Offset, e.Bytes, e.Value, e.At = record.Offset, recordBytes+len(record.Key)+len(record.Value), c, record.Timestamp
	if p.config.Ordered {
		e.Key = c.key
	}
	e.Identity = wire.OwnID(record)
	for _, header := range record.Headers {
		e.Bytes += len(header.Key) + len(header.Value)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next.Load() < 0 {
		p.next.Store(record.Offset) // a group without an offset begins here
	}
	p.release(p.lane.Push(e))
}

// release marks what is done, or commits it with what its handlers have published. The caller holds mu.
func (p *partitionConsumer) release(entries []*lane.Entry) {
	if len(entries) == 0 {
		return
	}
	next := entries[len(entries)-1].Offset + 1
	switch {
	case p.mark != nil:
		p.next.Store(next)
		p.mark(next)
	case p.txn != nil:
		p.next.Store(next)
		before := p.solo.guard.Note()
		p.txn.Add(messagesOf(entries, before, p.solo.guard.Done(len(entries), next)))
	}
}

// messagesOf converts entries for a transaction. after is the note that holds when all of them are done.
func messagesOf(entries []*lane.Entry, before, after string) []txn.Message {
	messages := make([]txn.Message, len(entries))
	for i, e := range entries {
		messages[i].Offset, messages[i].Note = e.Offset, before
		if c := consumedOf(e); c != nil {
			messages[i].Outputs, messages[i].Source = c.outputs, c
		}
	}
	messages[len(messages)-1].Note = after
	return messages
}

// lost returns a channel that is closed when a transaction finds that the partition belongs to another member.
func (p *partitionConsumer) lost() <-chan struct{} {
	if p.txn == nil {
		return nil
	}
	return p.txn.Lost()
}

// linger keeps the claim of a draining subscription until it is revoked, so that acks are still marked.
func (p *partitionConsumer) linger(session context.Context, claim sarama.ConsumerGroupClaim) {
	for {
		select {
		case _, ok := <-claim.Messages(): // neither delivered nor marked
			if !ok {
				return
			}
		case <-p.lost():
			return
		case <-session.Done():
			return
		}
	}
}

// handOver waits for running handlers, for at most handOverTimeout.
func (p *partitionConsumer) handOver() {
	timeout := time.NewTimer(handOverTimeout)
	defer timeout.Stop()
	for {
		p.mu.Lock()
		taken := p.lane.InFlight()
		p.mu.Unlock()
		if taken == 0 {
			return
		}
		select {
		case <-p.wake:
		case <-timeout.C:
			return
		}
	}
}

// flow stops or resumes the reading of the partition.
func (p *partitionConsumer) flow(stop bool) {
	p.paused.Store(stop)
	these := map[string][]int32{p.topic: {p.number}}
	if stop {
		p.group.Pause(these)
	} else {
		p.group.Resume(these)
	}
}

// update changes the lane and wakes the claim.
func (p *partitionConsumer) update(f func(*lane.Lane)) {
	p.mu.Lock()
	f(p.lane)
	p.mu.Unlock()
	p.Wake()
}

// Wake implements Waiter.
func (p *partitionConsumer) Wake() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
