package claim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// Subscriber wraps the subscriber of a handler, so that events which its consumer could not handle are brought back by
// Millrace in place of the broker: they are kept in the table and acked, so they hold up neither a partition nor a
// worker, and are delivered again after Config.Backoff, among those of sub. Where order matters (Config.Ordered) the later
// events of a key follow in order. Events that an operator replays come back here too. Several processes share the work.
//
// The wrapper must be the one that the router is given, and consumer what Config.Consumer returns for the handler.
// Closing it, or the end of Subscribe's context, stops both; what it has delivered may finish. It needs a PostgreSQL
// store. It is safe for concurrent use.
func (c *Claim) Subscriber(consumer string, sub message.Subscriber) message.Subscriber {
	return &subscriber{claim: c, consumer: consumer, sub: sub, stop: make(chan struct{})}
}

type sourceKey struct{}

// source tells that a message came through Subscriber.
type source struct {
	consumer, topic string
	event           *event  // nil: sub delivered it
	inner           *source // of another consumer, whose Subscriber this one wraps
}

func sourceOf(ctx context.Context) *source {
	s, _ := ctx.Value(sourceKey{}).(*source)
	return s
}

type subscriber struct {
	claim    *Claim
	consumer string
	sub      message.Subscriber

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
	case s.claim.postgres == nil:
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

	inFlight inFlight
}

func (s *subscription) run(ctx context.Context, in <-chan *message.Message) {
	var delivering sync.WaitGroup
	ended := make(chan struct{})
	delivering.Go(func() {
		defer close(ended)
		s.pass(in)
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

// pass hands on what the wrapped subscriber delivers, until that ends.
func (s *subscription) pass(in <-chan *message.Message) {
	from := &source{consumer: s.consumer, topic: s.topic}
	for msg := range in {
		switch inner := sourceOf(msg.Context()); {
		case inner == nil:
			msg.SetContext(context.WithValue(msg.Context(), sourceKey{}, from))
		case inner.event == nil:
			msg.SetContext(context.WithValue(msg.Context(), sourceKey{}, &source{consumer: s.consumer, topic: s.topic, inner: inner}))
		} // else another consumer has it brought back, and it is that one's
		select {
		case s.out <- msg:
		case <-s.stop:
			transport.DeliveryFrom(msg.Context()).RetryAfter(contendedDelay)
			msg.Nack() // nobody has taken it
		}
	}
}

// tableDelivery implements transport.Delivery for an event of the table.
type tableDelivery struct {
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
	return outageDelay
}
