package kafka

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

// partition is one partition of a subscription's topic. It outlives the claims by which the group gives it to this
// process and takes it away, because handlers may.
type partition struct {
	*subscription
	number int32
	wake   chan struct{} // there may be something to deliver
	next   atomic.Int64  // what is below is done; negative: unknown

	mu   sync.Mutex
	lane *lane
	mark func(next int64) // tells the group's session up to where everything is done; nil without a claim
}

func newPartition(s *subscription, number int32) *partition {
	return &partition{
		subscription: s,
		number:       number,
		wake:         make(chan struct{}, 1),
		lane:         newLane(s.config.Ordered, bounds{records: s.config.Concurrency + s.settings.Prefetch, bytes: prefetchBytes}),
	}
}

// consume delivers the claim's messages until the claim ends. Handlers that still run then do not hold up the group for
// longer than handOverTimeout; what they ack later is not marked.
func (p *partition) consume(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) {
	p.begin(session, claim)
	defer p.end()
	p.deliver(session.Context(), claim)
	if p.stopped() && session.Context().Err() == nil {
		p.linger(session.Context(), claim)
	}
	if keeps(session.Context()) {
		p.handOver()
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

func (p *partition) begin(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lane.resume(claim.InitialOffset())
	p.next.Store(claim.InitialOffset())
	p.mark = func(next int64) { session.MarkOffset(p.topic, p.number, next, "") }
	p.flow(false)
	p.observer.assigned(p, claim)
}

func (p *partition) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mark = nil
	p.lane.suspend()
	p.observer.revoked(p)
}

// deliver hands the partition's messages to handlers until the session, the claim or the subscription ends.
func (p *partition) deliver(session context.Context, claim sarama.ConsumerGroupClaim) {
	o := &offer{p: p}
	defer o.withdraw()
	timer := time.NewTimer(0)
	defer timer.Stop()
	full := false
	for !p.stopped() {
		due, nowFull := o.next()
		if nowFull != full {
			full = nowFull
			p.flow(full)
		}
		timer.Stop()
		if !due.IsZero() {
			timer.Reset(time.Until(due))
		}
		done := func() bool {
			if o.msg != nil {
				p.sending.RLock()
				defer p.sending.RUnlock()
				if p.stopped() { // of two ready cases the next select takes any, and out may be closed
					return true
				}
			}
			select {
			case record, ok := <-claim.Messages():
				if !ok {
					return true
				}
				p.push(record)
			case o.slot() <- struct{}{}:
				o.prepare()
			case o.receiver() <- o.msg:
				o.taken()
			case <-p.wake:
			case <-timer.C:
			case <-p.stop:
			case <-session.Done():
				return true
			}
			return false
		}()
		if done {
			return
		}
	}
}

// push adds a record that has been read.
func (p *partition) push(record *sarama.ConsumerMessage) {
	e := &entry{offset: record.Offset, bytes: len(record.Key) + len(record.Value), value: record}
	if p.config.Ordered {
		e.key = string(record.Key)
	}
	for _, header := range record.Headers {
		e.bytes += len(header.Key) + len(header.Value)
		if string(header.Key) == idHeader {
			e.identity = string(header.Value)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release(p.lane.push(e))
}

// release marks what is done. The caller holds mu.
func (p *partition) release(entries []*entry) {
	if len(entries) > 0 && p.mark != nil {
		next := entries[len(entries)-1].offset + 1
		p.next.Store(next)
		p.mark(next)
	}
}

// linger keeps the claim of a draining subscription until it is revoked: so long acks are marked.
func (p *partition) linger(session context.Context, claim sarama.ConsumerGroupClaim) {
	for {
		select {
		case _, ok := <-claim.Messages(): // not delivered and not marked
			if !ok {
				return
			}
		case <-session.Done():
			return
		}
	}
}

// handOver waits for running handlers, but not for slow ones.
func (p *partition) handOver() {
	timeout := time.NewTimer(handOverTimeout)
	defer timeout.Stop()
	for {
		p.mu.Lock()
		taken := p.lane.taken
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
func (p *partition) flow(stop bool) {
	these := map[string][]int32{p.topic: {p.number}}
	if stop {
		p.group.Pause(these)
	} else {
		p.group.Resume(these)
	}
}

// update changes the lane and wakes the claim.
func (p *partition) update(f func(*lane)) {
	p.mu.Lock()
	f(p.lane)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
