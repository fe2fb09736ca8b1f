// Package receive is what is between Pub/Sub and the handlers: slots, drain, retries, dead letters; and the intake by pull.
package receive

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/internal/tracing"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/conn"
	"github.com/millrace-go/millrace/transport/pubsub/internal/nack"
	"github.com/millrace-go/millrace/transport/pubsub/internal/publish"
	"github.com/millrace-go/millrace/transport/pubsub/internal/resource"
	"github.com/millrace-go/millrace/transport/pubsub/internal/stream"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// Subscription is one call of Subscribe: what is between an intake and the handlers.
type Subscription struct {
	shared   Shared
	config   Config
	policy   nack.Policy
	log      *slog.Logger
	observer *subscriptionObserver
	tracing  tracing.Deliveries

	sending sync.RWMutex          // held for reading while sending to out, for writing to close it
	out     chan *message.Message // closed after stop; with room for as many as there are slots, unless it is push's
	slots   chan struct{}         // one per message that is delivered and neither acked nor nacked
	stop    chan struct{}         // closed when ctx or the subscriber ends
	held    *stream.Held          // nil, unless the subscription is ordered and pulls

	mu      sync.Mutex     // guards results.Go against results.Wait
	flushed bool           // nobody waits for results any more
	results sync.WaitGroup // waits for what becomes of acks and nacks with exactly-once delivery
}

// Shared is what the subscriptions of a transport share.
type Shared struct {
	Client      *conn.Client
	Resources   *resource.Registry
	Publisher   *publish.Publisher // of dead letters
	Observer    *Observer
	AckFailures *atomic.Int64
}

// Config is how a subscription receives, as pubsub.SubscriptionConfig describes it.
type Config struct {
	resource.Subscription
	Project             wire.Project
	Name                string // full name of the Pub/Sub subscription
	Concurrency         int
	EventID             transport.EventIDSource
	Prefetch            int
	MaxOutstandingBytes int
	Streams             int
	Recheck             time.Duration
	DrainTimeout        time.Duration

	TracerProvider trace.TracerProvider
	Propagator     propagation.TextMapPropagator
	Log            *slog.Logger
}

// Intake gets messages from Pub/Sub and hands them to the subscription's Deliver until ctx ends. It returns when each
// has its ack or nack. messages is the parent of the messages' contexts; it outlives ctx, so that running handlers can
// finish.
type Intake func(ctx, messages context.Context)

// New returns a subscription. Its caller calls Run.
func New(shared Shared, config Config) *Subscription {
	// A message that waits for its handler here costs less than a goroutine that waits to hand it over. What is pushed
	// must not wait where it cannot be given up.
	room := config.Concurrency
	if config.Push != nil {
		room = 0
	}
	s := &Subscription{
		shared:   shared,
		config:   config,
		policy:   nack.Policy{MaxAttempts: config.MaxAttempts, RetryMin: config.RetryMin, RetryMax: config.RetryMax},
		log:      config.Log.With(slog.String("topic", config.Topic), slog.String("consumer", config.Consumer)),
		observer: shared.Observer.subscription(config.Topic, config.Consumer),
		tracing:  tracing.NewDeliveries(config.TracerProvider, config.Propagator, conn.Scope, "gcp_pubsub", config.Topic, config.Consumer),
		out:      make(chan *message.Message, room),
		slots:    make(chan struct{}, config.Concurrency),
		stop:     make(chan struct{}),
	}
	if config.Ordered && config.Push == nil {
		s.held = stream.NewHeld()
	}
	return s
}

// Config is that of New.
func (s *Subscription) Config() Config { return s.config }

// Messages is what handlers read. It is closed when Run begins to end.
func (s *Subscription) Messages() <-chan *message.Message { return s.out }

// Closing is closed when the subscription takes no more messages.
func (s *Subscription) Closing() <-chan struct{} { return s.stop }

// Slots is how many handlers may run at once.
func (s *Subscription) Slots() int { return cap(s.slots) }

// Free tells whether a handler could begin.
func (s *Subscription) Free() bool { return len(s.slots) < cap(s.slots) }

// Run delivers until ctx ends or closing is closed, and returns after the last ack was sent, or could not be sent within
// conn.FlushTimeout.
func (s *Subscription) Run(ctx context.Context, closing <-chan struct{}, take Intake) {
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
	timer := time.AfterFunc(s.config.DrainTimeout, abandon)
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

// Deliver hands the message to a handler and waits for its end. It occupies a slot only in between.
func (s *Subscription) Deliver(ctx context.Context, m *pubsub.Message, delivery *Delivery) Outcome {
	o := Undelivered
	if s.enter(delivery.giveUp) {
		o = s.handOver(ctx, m, delivery)
		<-s.slots
	}
	s.observer.delivered(ctx, o, delivery.Asked())
	return o
}

// enter waits for a slot. It returns false when the subscription was closed, or giveUp, before there was one.
func (s *Subscription) enter(giveUp <-chan struct{}) bool {
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

func (s *Subscription) handOver(ctx context.Context, m *pubsub.Message, delivery *Delivery) (o Outcome) {
	msg := wire.Unmarshal(m)
	delivery.topic, delivery.received = s.config.Topic, m
	delivery.unidentified = wire.Identify(s.config.EventID, msg, wire.PlaceOf(s.config.Topic, m))
	ctx, span := s.tracing.Begin(ctx, msg, delivery.attempt)
	defer func() { tracing.End(span, outcomeNames[o], (o == Nacked || o == Abandoned) && !delivery.Asked()) }()
	delivery.Context.Context = ctx
	defer delivery.End()
	if s.repeats() { // m may come again from here, or go to the dead-letter topic, whatever the handler does to its own
		msg.Payload = bytes.Clone(m.Data)
	}
	msg.SetContext(transport.WithDelivery(delivery, delivery))
	if !s.send(msg, delivery.giveUp) {
		return Undelivered
	}
	select {
	case <-msg.Acked():
		return Acked
	case <-msg.Nacked():
		if delivery.withdrawn {
			return Undelivered
		}
		return Nacked
	case <-ctx.Done():
	}
	select {
	case <-msg.Acked(): // both at once: what is done is done
		return Acked
	default:
		return Abandoned
	}
}

// repeats tells whether a message may be delivered again from within the process.
func (s *Subscription) repeats() bool {
	return s.config.Ordered || s.config.Push != nil || s.policy.Counts()
}

// send hands the message over. It returns false when the subscription was closed, or giveUp, before that.
func (s *Subscription) send(msg *message.Message, giveUp <-chan struct{}) bool {
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
func (s *Subscription) finish() {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.takeBack(func(*Delivery) bool { return true })
	close(s.out)
}

// giveUp takes back what came from a stream that has failed and no handler has got. Where nobody reads, its receiving
// would not end.
func (s *Subscription) giveUp() {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.takeBack((*Delivery).givenUp)
}

// takeBack takes messages out of out. The caller holds sending, so there is room to put the others back.
func (s *Subscription) takeBack(which func(*Delivery) bool) {
	for range len(s.out) {
		select {
		case msg := <-s.out:
			if d := transport.DeliveryFrom(msg.Context()).(*Delivery); which(d) {
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
