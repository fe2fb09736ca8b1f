package pubsub

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/tracing"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/conn"
	"github.com/millrace-go/millrace/transport/pubsub/internal/stream"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// subscription is one call of Subscribe: what is between an intake and the handlers.
type subscription struct {
	transport *Transport
	config    transport.SubscriberConfig
	settings  SubscriptionConfig // of this consumer
	topic     string
	name      string // full name of the Pub/Sub subscription
	log       *slog.Logger
	observer  *subscriptionObserver
	tracing   tracing.Deliveries

	sending sync.RWMutex          // held for reading while sending to out, for writing to close it
	out     chan *message.Message // closed after stop; with room for as many as there are slots, unless it is push's
	slots   chan struct{}         // one per message that is delivered and neither acked nor nacked
	stop    chan struct{}         // closed when ctx or the subscriber ends
	held    *stream.Held          // nil, unless the subscription is ordered and pulls

	mu      sync.Mutex     // guards results.Go against results.Wait
	flushed bool           // nobody waits for results any more
	results sync.WaitGroup // waits for what becomes of acks and nacks with exactly-once delivery
}

// intake gets messages from Pub/Sub and hands them to the subscription's deliver until ctx ends. It returns when each
// has its ack or nack. messages is the parent of the messages' contexts; it outlives ctx, so that running handlers can
// finish.
type intake func(ctx, messages context.Context)

func newSubscription(t *Transport, config transport.SubscriberConfig, topic, name string) *subscription {
	settings := t.config.subscription(config.Consumer)
	// A message that waits for its handler here costs less than a goroutine that waits to hand it over. What is pushed
	// must not wait where it cannot be given up.
	room := config.Concurrency
	if settings.Push != nil {
		room = 0
	}
	s := &subscription{
		transport: t,
		config:    config,
		settings:  settings,
		topic:     topic,
		name:      name,
		log:       t.log.With(slog.String("topic", topic), slog.String("consumer", config.Consumer)),
		observer:  t.observer.subscription(topic, config.Consumer),
		tracing:   tracing.NewDeliveries(t.config.TracerProvider, t.config.Propagator, conn.Scope, "gcp_pubsub", topic, config.Consumer),
		out:       make(chan *message.Message, room),
		slots:     make(chan struct{}, config.Concurrency),
		stop:      make(chan struct{}),
	}
	if config.Ordered && settings.Push == nil {
		s.held = stream.NewHeld()
	}
	return s
}

// run delivers until ctx ends or closing is closed, and returns after the last ack was sent, or could not be sent within
// conn.FlushTimeout.
func (s *subscription) run(ctx context.Context, closing <-chan struct{}, take intake) {
	messages, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	taking, stopTaking := context.WithCancel(context.Background())
	defer stopTaking()
	taken := make(chan struct{})
	go func() {
		defer close(taken)
		take(taking, messages)
	}()

	select {
	case <-ctx.Done():
	case <-closing:
	}
	if s.held != nil {
		s.held.Drain() // before the first nack
	}
	close(s.stop)
	stopTaking()
	s.finish()
	timer := time.AfterFunc(s.transport.config.DrainTimeout, abandon)
	defer timer.Stop()
	for range cap(s.slots) { // all of them: no handler runs any more
		s.slots <- struct{}{}
	}
	select {
	case <-taken:
	case <-time.After(conn.FlushTimeout):
		// Google's client (v2.6.0) does not end while it waits to open a stream again, up to 30 s at a time. Nothing
		// can be delivered any more, and its goroutine ends with the client.
		s.log.Warn("the service does not answer: acks may be lost, and their messages be delivered again")
	}
	s.mu.Lock()
	s.flushed = true
	s.mu.Unlock()
	s.results.Wait()
}

// deliver hands the message to a handler and waits for its end. It occupies a slot only in between.
func (s *subscription) deliver(ctx context.Context, m *pubsub.Message, delivery *delivery) outcome {
	o := undelivered
	if s.enter(delivery.giveUp) {
		o = s.handOver(ctx, m, delivery)
		<-s.slots
	}
	s.observer.delivered(ctx, o, delivery.asked())
	return o
}

// enter waits for a slot. It returns false when the subscription was closed, or giveUp, before there was one.
func (s *subscription) enter(giveUp <-chan struct{}) bool {
	select {
	case s.slots <- struct{}{}: // mostly
		return true
	default:
	}
	select {
	case s.slots <- struct{}{}:
		return true
	case <-s.stop:
		return false
	case <-giveUp:
		return false
	}
}

func (s *subscription) handOver(ctx context.Context, m *pubsub.Message, delivery *delivery) (o outcome) {
	msg := wire.Unmarshal(m)
	delivery.topic, delivery.received = s.topic, m
	delivery.unidentified = wire.Identify(s.settings.EventID, msg, wire.PlaceOf(s.topic, m))
	ctx, span := s.tracing.Begin(ctx, msg, delivery.attempt)
	defer func() { tracing.End(span, outcomeNames[o], (o == nacked || o == abandoned) && !delivery.asked()) }()
	delivery.Context.Context = ctx
	defer delivery.End()
	if s.repeats() { // m may come again from here, or go to the dead-letter topic, whatever the handler does to its own
		msg.Payload = bytes.Clone(m.Data)
	}
	msg.SetContext(transport.WithDelivery(delivery, delivery))
	if !s.send(msg, delivery.giveUp) {
		return undelivered
	}
	select {
	case <-msg.Acked():
		return acked
	case <-msg.Nacked():
		if delivery.withdrawn {
			return undelivered
		}
		return nacked
	case <-ctx.Done():
	}
	select {
	case <-msg.Acked(): // both at once: what is done is done
		return acked
	default:
		return abandoned
	}
}

// policy tells whether Pub/Sub counts deliveries, or waits before the next one.
func (s *subscription) policy() bool {
	return s.settings.DeadLetter.Topic != "" || s.settings.Retry != (Retry{})
}

// repeats tells whether a message may be delivered again from within the process.
func (s *subscription) repeats() bool {
	return s.config.Ordered || s.settings.Push != nil || s.policy()
}

// send hands the message over. It returns false when the subscription was closed, or giveUp, before that.
func (s *subscription) send(msg *message.Message, giveUp <-chan struct{}) bool {
	s.sending.RLock()
	defer s.sending.RUnlock()
	// One by one: of two ready cases a select takes any, and those of one case cost a fraction of the others.
	select {
	case <-s.stop: // out may be closed
		return false
	default:
	}
	select {
	case <-giveUp: // an earlier message of the key may have been given up
		return false
	default:
	}
	select {
	case s.out <- msg: // mostly
		return true
	default:
	}
	select {
	case s.out <- msg:
		return true
	case <-s.stop:
		return false
	case <-giveUp:
		return false
	}
}

// finish closes out, and takes back what is there and no handler has got.
func (s *subscription) finish() {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.takeBack(func(*delivery) bool { return true })
	close(s.out)
}

// giveUp takes back what came from a stream that has failed and no handler has got. Where nobody reads, its receiving
// would not end.
func (s *subscription) giveUp() {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.takeBack((*delivery).givenUp)
}

// takeBack takes messages out of out. The caller holds sending, so there is room to put the others back.
func (s *subscription) takeBack(which func(*delivery) bool) {
	for range len(s.out) {
		select {
		case msg := <-s.out:
			if d := transport.DeliveryFrom(msg.Context()).(*delivery); which(d) {
				d.withdrawn = true
				msg.Nack()
			} else {
				s.out <- msg
			}
		default:
			return // a handler has got the rest
		}
	}
}
