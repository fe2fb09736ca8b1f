package claim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/middleware/claim/internal/fault"
	"github.com/millrace-go/millrace/middleware/claim/internal/store"
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
//
// When a consumer's topic was renamed, events that had failed before belong to a topic that nobody subscribes to. The
// subscription takes them once they have been due for 5 minutes, if it is the consumer's only one in this process.
func (c *Claim) Subscriber(consumer string, sub message.Subscriber, options ...SubscriberOption) message.Subscriber {
	s := &subscriber{claim: c, consumer: c.scoped(consumer), sub: sub, stop: make(chan struct{})}
	for _, o := range options {
		o(s)
	}
	return s
}

// SubscriberOption changes what Claim.Subscriber returns.
type SubscriberOption func(*subscriber)

// Within makes the events that are retried from the table count with those that the wrapped subscriber delivers: of each
// subscription at most n are handled at once. n is the wrapped subscriber's concurrency; 0 is no limit, and so is Config.Deferred,
// where the next message comes before the ack of the one before. Default: 10 retries, beside what the wrapped subscriber delivers.
func Within(n int) SubscriberOption {
	return func(s *subscriber) { s.within = n }
}

type sourceKey struct{}

// source tells that a message came through Subscriber.
type source struct {
	consumer, topic string
	event           *store.Event // nil: sub delivered it
	claimed         atomic.Bool  // the event of the table has come to its claim
	inner           *source      // of another consumer, whose Subscriber this one wraps
}

func sourceOf(ctx context.Context) *source {
	s, _ := ctx.Value(sourceKey{}).(*source)
	return s
}

type subscriber struct {
	claim    *Claim
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
	if s.within > 0 && s.claim.modes.flusher == nil {
		sub.slots = make(chan struct{}, s.within)
	}
	s.claim.nudges.add(s.consumer, sub.nudge) // until bringBack ends
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
	from := &source{consumer: s.consumer, topic: s.topic}
	for msg := range in {
		switch inner := sourceOf(msg.Context()); {
		case inner == nil:
			msg.SetContext(context.WithValue(msg.Context(), sourceKey{}, from))
		case inner.event == nil:
			msg.SetContext(context.WithValue(msg.Context(), sourceKey{}, &source{consumer: s.consumer, topic: s.topic, inner: inner}))
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
