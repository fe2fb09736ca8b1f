// Package redelivery says where a message comes from, and when it comes back. It delivers the events of the table that are due beside
// those of a broker, and makes redelivered messages wait where their transport cannot.
package redelivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/middleware/claim/internal/fault"
	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/transport"
)

// Config configures a Redelivery. All of it is required.
type Config struct {
	Store  *store.Postgres // nil: nothing is kept, and no Subscriber subscribes
	Logger *slog.Logger

	Timeout func(consumer string) time.Duration // of a handler
	Room    func(consumer string, room int) int // how many events of the table may be delivered, with so much room for them
	Ahead   bool                                // the next message comes before the ack of the one before
}

// Redelivery delivers a Claim's events of the table. It is safe for concurrent use.
type Redelivery struct {
	Poll     time.Duration // how often a Subscriber looks at the table; before the first one
	Lease    time.Duration // how long an event of the table is a Subscriber's
	Orphaned time.Duration // for how long an event of another topic is due before a Subscriber takes it

	cfg    Config
	nudges nudges
}

// New returns a Redelivery.
func New(cfg Config) *Redelivery {
	return &Redelivery{Poll: pollInterval, Lease: leaseTime, Orphaned: orphanedAfter, cfg: cfg}
}

// Subscriber wraps the subscriber of a consumer's handler. within is how many events are handled at once; 0: no limit.
func (r *Redelivery) Subscriber(consumer string, sub message.Subscriber, within int) message.Subscriber {
	return &subscriber{of: r, consumer: consumer, sub: sub, within: within, stop: make(chan struct{})}
}

type subscriber struct {
	of       *Redelivery
	consumer string
	sub      message.Subscriber
	within   int // 0: no limit

	mu      sync.Mutex
	closed  bool
	stop    chan struct{}
	running sync.WaitGroup // one per Subscribe; Add only under mu while not closed
}

// SubscribeInitialize implements message.SubscribeInitializer where the wrapped subscriber does.
func (s *subscriber) SubscribeInitialize(topic string) error {
	if i, ok := s.sub.(message.SubscribeInitializer); ok {
		return i.SubscribeInitialize(topic)
	}
	return nil
}

func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	switch {
	case s.of.cfg.Store == nil:
		return nil, errors.New("claim: Subscriber: the claim's store keeps no events that failed: want one with PostgreSQL behind it, or the subscriber itself")
	case s.consumer == "":
		return nil, errors.New("claim: Subscriber: consumer is empty: want the name that Config.Consumer returns for the handler")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, transport.ErrClosed
	}
	in, err := s.sub.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	sub := &subscription{subscriber: s, topic: topic, out: make(chan *message.Message), stop: make(chan struct{}), nudge: make(chan struct{}, 1)}
	if s.within > 0 && !s.of.cfg.Ahead {
		sub.slots = make(chan struct{}, s.within)
	}
	s.of.nudges.add(s.consumer, sub.nudge) // until bringBack ends
	s.running.Go(func() { sub.run(ctx, in) })
	return sub.out, nil
}

// FindEventID implements transport.EventIDFinder, by the wrapped subscriber. Without its help the ID is the message's own.
func (s *subscriber) FindEventID(msg *message.Message, origin transport.Origin) (string, error) {
	if finder, ok := s.sub.(transport.EventIDFinder); ok {
		return finder.FindEventID(msg, origin)
	}
	if msg.UUID == "" && len(origin) > 0 {
		return "", fmt.Errorf("Claim.Subscriber was given a %T, which cannot look for the ID: give it the transport's own subscriber", s.sub)
	}
	return msg.UUID, nil
}

// Close closes the wrapped subscriber, and returns after what was delivered has been acked or nacked.
func (s *subscriber) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.stop)
	}
	s.mu.Unlock()
	err := s.sub.Close()
	s.running.Wait()
	return err
}

// subscription is one call of Subscribe.
type subscription struct {
	*subscriber
	topic string
	out   chan *message.Message
	stop  chan struct{} // closed when nothing more may be delivered
	nudge chan struct{} // something may be due
	slots chan struct{} // of what is being handled; nil: there is no limit

	inFlight inFlight
}

func (s *subscription) run(ctx context.Context, in <-chan *message.Message) {
	var delivering sync.WaitGroup
	ended := make(chan struct{})
	delivering.Go(func() {
		defer close(ended)
		s.pass(in, &delivering)
	})
	delivering.Go(func() { s.bringBack(context.WithoutCancel(ctx)) })
	select {
	case <-ctx.Done():
	case <-s.subscriber.stop:
	case <-ended:
	}
	close(s.stop)
	delivering.Wait()
	close(s.out)
}

// acquire waits for a slot. It reports false when the subscription has stopped.
func (s *subscription) acquire() bool {
	if s.slots == nil {
		return true
	}
	select {
	case s.slots <- struct{}{}:
		return true
	case <-s.stop:
		return false
	}
}

func (s *subscription) release() {
	if s.slots != nil {
		<-s.slots
	}
}

// free is how many events of the table may be asked for, with so much room for them. One may wait for a slot.
func (s *subscription) free(room int) int {
	if s.slots == nil {
		return room
	}
	return min(room, max(1, cap(s.slots)-len(s.slots)))
}

// pass hands on what the wrapped subscriber delivers, until that ends.
func (s *subscription) pass(in <-chan *message.Message, watching *sync.WaitGroup) {
	from := &Source{Consumer: s.consumer, Topic: s.topic}
	for msg := range in {
		switch inner := From(msg.Context()); {
		case inner == nil:
			msg.SetContext(With(msg.Context(), from))
		case inner.Event == nil:
			msg.SetContext(With(msg.Context(), &Source{Consumer: s.consumer, Topic: s.topic, Inner: inner}))
		} // else another consumer has it brought back, and it is that one's
		if s.hand(msg, watching) {
			continue
		}
		transport.DeliveryFrom(msg.Context()).RetryAfter(fault.ContendedDelay)
		msg.Nack() // nobody has taken it
	}
}

// offer gives the message to the router, and with it the slot that the caller has acquired, and releases. It reports false when the
// subscription has stopped.
func (s *subscription) offer(msg *message.Message) bool {
	select {
	case s.out <- msg:
		return true
	case <-s.stop:
		s.release()
		return false
	}
}

// hand gives the message to the router, and releases its slot once it is settled. It reports false when the subscription has stopped.
func (s *subscription) hand(msg *message.Message, watching *sync.WaitGroup) bool {
	if !s.acquire() || !s.offer(msg) {
		return false
	}
	if s.slots != nil {
		watching.Go(func() {
			defer s.release()
			select {
			case <-msg.Acked():
			case <-msg.Nacked():
			case <-s.stop: // nothing waits for a slot any more
			}
		})
	}
	return true
}

// tableDelivery implements transport.Delivery for an event of the table.
type tableDelivery struct {
	transport.Rejection
	origin       transport.Origin
	unidentified error // why no ID was found
	attempt      int
	after        atomic.Int64 // nanoseconds; 0: nobody asked
}

func (d *tableDelivery) Attempt() int                   { return d.attempt }
func (d *tableDelivery) RetryAfter(after time.Duration) { d.after.Store(int64(after)) }
func (d *tableDelivery) Handled()                       {}
func (d *tableDelivery) Origin() transport.Origin       { return d.origin }
func (d *tableDelivery) EventIDError() error            { return d.unidentified }

func (d *tableDelivery) delay() time.Duration {
	if after := time.Duration(d.after.Load()); after > 0 {
		return after
	}
	return fault.OutageDelay
}
