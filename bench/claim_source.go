package main

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/bench/internal/wait"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

// nackDelay is when a nacked message comes back where nobody asks for more.
const nackDelay = 10 * time.Millisecond

// flow is how a source delivers.
type flow struct {
	inFlight int  // messages that are delivered and neither acked nor nacked
	ordered  bool // the next event is delivered when the last one is handled
	twice    bool // every second event is delivered twice at the same time
	events   int  // as many and no more; 0: until it is stopped
}

// source is a subscriber of a broker that costs nothing and always has another event, with an ID of its own. What is
// nacked comes back after the delay that was asked for, which holds up nothing else. It is for one Subscribe.
type source struct {
	flow
	messages chan *message.Message
	slots    chan struct{}
	stopped  chan struct{} // no new events
	stopOnce sync.Once
	drained  chan struct{} // all that was delivered is settled, or abandoned with the subscription

	delivered, acked atomic.Int64 // events: a second copy does not count
	nacked           atomic.Int64 // deliveries
}

func newSource(f flow) *source {
	return &source{
		flow: f, messages: make(chan *message.Message), slots: make(chan struct{}, f.inFlight),
		stopped: make(chan struct{}), drained: make(chan struct{}),
	}
}

// Subscribe implements message.Subscriber.
func (s *source) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	go func() {
		defer close(s.drained)
		defer close(s.messages)
		var running sync.WaitGroup
		defer running.Wait()
		for n := 0; s.events == 0 || n < s.events; n++ {
			select {
			case <-s.stopped:
				return
			default:
			}
			if !s.deliver(ctx, n, &running) {
				return
			}
		}
	}()
	return s.messages, nil
}

// Close implements message.Subscriber: it returns when all that was delivered is settled.
func (s *source) Close() error {
	s.stop()
	<-s.drained
	return nil
}

func (s *source) stop() { s.stopOnce.Do(func() { close(s.stopped) }) }

// deliver delivers the n-th event and, where it is ordered, waits until that is handled.
func (s *source) deliver(ctx context.Context, n int, running *sync.WaitGroup) bool {
	copies := 1
	if s.twice && n%2 == 1 {
		copies = 2
	}
	e := &sourced{id: outbox.NewID(), payload: []byte(strconv.Itoa(account(n)))}
	s.delivered.Add(1)
	for range copies {
		msg, d, ok := s.send(ctx, e, 1)
		if !ok {
			return false
		}
		running.Go(func() { s.await(ctx, e, msg, d) })
		if !s.ordered {
			continue
		}
		select {
		case <-d.handled:
		case <-msg.Acked():
		case <-msg.Nacked():
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// send waits for a slot and for the router.
func (s *source) send(ctx context.Context, e *sourced, attempt int) (*message.Message, *delivery, bool) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, false
	}
	d := &delivery{attempt: attempt, handled: make(chan struct{})}
	msg := message.NewMessage(e.id, e.payload)
	msg.SetContext(transport.WithDelivery(ctx, d))
	select {
	case s.messages <- msg:
		return msg, d, true
	case <-ctx.Done():
		return nil, nil, false
	}
}

// await delivers the event again until it is acked.
func (s *source) await(ctx context.Context, e *sourced, msg *message.Message, d *delivery) {
	for {
		select {
		case <-msg.Acked():
			<-s.slots
			if !e.acked.Swap(true) {
				s.acked.Add(1)
			}
			return
		case <-msg.Nacked():
			<-s.slots
			s.nacked.Add(1)
		case <-ctx.Done():
			return
		}
		if !wait.For(ctx, max(nackDelay, time.Duration(d.after.Load()))) {
			return
		}
		var ok bool
		if msg, d, ok = s.send(ctx, e, d.attempt+1); !ok {
			return
		}
	}
}

// sourced is an event of a source.
type sourced struct {
	id      string
	payload []byte
	acked   atomic.Bool
}

// delivery takes what middleware says about a delivery.
type delivery struct {
	transport.Rejection
	attempt     int
	after       atomic.Int64
	handled     chan struct{}
	handledOnce sync.Once
}

func (d *delivery) Attempt() int                   { return d.attempt }
func (d *delivery) RetryAfter(after time.Duration) { d.after.Store(int64(after)) }
func (d *delivery) Handled()                       { d.handledOnce.Do(func() { close(d.handled) }) }
