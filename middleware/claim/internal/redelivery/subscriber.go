// Package redelivery delivers due events of the table in addition to the broker's, marks where a message comes from, and delays the
// nack of messages whose transport cannot delay redeliveries.
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

// Config configures a Redelivery. All fields but Store are required.
type Config struct {
	Store  *store.Postgres // nil: no event is kept, and Subscribe fails
	Logger *slog.Logger

	Timeout func(consumer string) time.Duration // of a handler
	Room    func(consumer string, room int) int // how many events of the table may be delivered now, at most room
	Ahead   bool                                // the transport delivers the next message before the ack of the one before
}

// Redelivery delivers a Claim's events from the table. It is safe for concurrent use.
type Redelivery struct {
	Poll     time.Duration // how often a Subscriber polls the table; set it before the first one
	Lease    time.Duration // how long a Subscriber leases an event of the table
	Orphaned time.Duration // how long an event of another topic is due before a Subscriber takes it

	cfg    Config
	nudges nudges
}

// New returns a Redelivery.
func New(cfg Config) *Redelivery {
	return &Redelivery{Poll: pollInterval, Lease: leaseTime, Orphaned: orphanedAfter, cfg: cfg}
}

// Subscriber wraps the subscriber of a consumer's handler. within is the number of events handled at once; 0: no limit.
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

// SubscribeInitialize implements message.SubscribeInitializer if the wrapped subscriber does.
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
	sub := &subscription{subscriber: s, topic: topic, poll: s.of.Poll, out: make(chan *message.Message), stop: make(chan struct{}), nudge: make(chan struct{}, 1)}
	if s.within > 0 && !s.of.cfg.Ahead {
		sub.slots = make(chan struct{}, s.within)
	}
	s.of.nudges.add(s.consumer, sub.nudge) // until bringBack ends
	s.running.Go(func() { sub.run(ctx, in) })
	return sub.out, nil
}

// FindEventID implements transport.EventIDFinder with the wrapped subscriber. If that cannot find the ID, it is the message's own.
func (s *subscriber) FindEventID(msg *message.Message, origin transport.Origin) (string, error) {
	if finder, ok := s.sub.(transport.EventIDFinder); ok {
		return finder.FindEventID(msg, origin)
	}
	if msg.UUID == "" && len(origin) > 0 {
		return "", fmt.Errorf("Claim.Subscriber was given a %T, which cannot look for the ID: give it the transport's own subscriber", s.sub)
	}
	return msg.UUID, nil
}

// Close closes the wrapped subscriber. It returns when all delivered messages have been acked or nacked.
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
	poll  time.Duration // the shortest wait between two looks at the table
	out   chan *message.Message
	stop  chan struct{} // closed when nothing more may be delivered
	nudge chan struct{} // an event may be due
	slots chan struct{} // one for each message being handled; nil: no limit

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

// acquire waits for a slot, and takes further ones while there are free ones, at most most. It returns how many it has taken, 0 if
// the subscription has stopped.
func (s *subscription) acquire(most int) (n int) {
	if s.slots == nil || most == 0 {
		return most
	}
	select {
	case s.slots <- struct{}{}:
	case <-s.stop:
		return 0
	}
	for n = 1; n < most; n++ {
		select {
		case s.slots <- struct{}{}:
		default:
			return n
		}
	}
	return n
}

func (s *subscription) release(n int) {
	if s.slots == nil {
		return
	}
	for range n {
		<-s.slots
	}
}

// pass delivers the wrapped subscriber's messages until there are no more.
func (s *subscription) pass(in <-chan *message.Message, watching *sync.WaitGroup) {
	from := &Source{Consumer: s.consumer, Topic: s.topic}
	for msg := range in {
		switch inner := From(msg.Context()); {
		case inner == nil:
			msg.SetContext(With(msg.Context(), from))
		case inner.Event == nil:
			msg.SetContext(With(msg.Context(), &Source{Consumer: s.consumer, Topic: s.topic, Inner: inner}))
		} // otherwise another consumer retries it, and the event belongs to that one
		if s.hand(msg, watching) {
			continue
		}
		transport.DeliveryFrom(msg.Context()).RetryAfter(fault.ContendedDelay)
		msg.Nack() // nothing has taken it
	}
}

// offer sends the message to the router, which takes over the caller's slot. If the subscription has stopped, offer releases the
// slot and returns false.
func (s *subscription) offer(msg *message.Message) bool {
	select {
	case s.out <- msg:
		return true
	case <-s.stop:
		s.release(1)
		return false
	}
}

// hand sends the message to the router, and releases its slot when it is settled. It returns false if the subscription has stopped.
func (s *subscription) hand(msg *message.Message, watching *sync.WaitGroup) bool {
	if s.acquire(1) == 0 || !s.offer(msg) {
		return false
	}
	if s.slots != nil {
		watching.Go(func() {
			defer s.release(1)
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
	unidentified error // the error of the search for its ID
	attempt      int
	after        atomic.Int64 // nanoseconds; 0: not set
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
