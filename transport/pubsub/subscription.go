package pubsub

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill/message"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/transport"
)

const (
	// maxLease is how long the lease of one message is renewed: longer than any handler should run. It also ends a
	// longer wish of Delivery.RetryAfter.
	maxLease = time.Hour
	// The waits before a receive that has failed is tried again: the first and the largest. It doubles each time.
	firstReceiveRetry = 100 * time.Millisecond
	lastReceiveRetry  = 30 * time.Second
	// flushTimeout bounds the sending of acks after the last handler has ended.
	flushTimeout = 3 * time.Second
)

// subscription is one call of Subscribe.
type subscription struct {
	transport *Transport
	config    transport.SubscriberConfig
	settings  SubscriptionConfig // of this consumer
	topic     string
	name      string // full name of the Pub/Sub subscription
	log       *slog.Logger
	budget    int // in bytes; names its streams to pullStreams

	sending sync.RWMutex          // held for reading while sending to out, for writing to close it
	out     chan *message.Message // closed after stop
	slots   chan struct{}         // one per message that is delivered and neither acked nor nacked
	stop    chan struct{}         // closed when ctx or the subscriber ends

	results sync.WaitGroup // waits for acks with exactly-once delivery
}

func newSubscription(t *Transport, config transport.SubscriberConfig, topic, name string) *subscription {
	return &subscription{
		transport: t,
		config:    config,
		settings:  t.config.subscription(config.Consumer),
		topic:     topic,
		name:      name,
		log:       t.log.With(slog.String("topic", topic), slog.String("consumer", config.Consumer)),
		out:       make(chan *message.Message),
		slots:     make(chan struct{}, config.Concurrency),
		stop:      make(chan struct{}),
	}
}

// run delivers until ctx ends or closing is closed, and returns after the last ack was sent, or could not be sent within
// flushTimeout.
func (s *subscription) run(ctx context.Context, closing <-chan struct{}) {
	// The parent of the messages' contexts. It outlives ctx, so that running handlers can finish.
	messages, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()

	s.budget = s.transport.streams.add()
	intake, stopIntake := context.WithCancel(context.Background())
	defer stopIntake()
	received := make(chan struct{})
	go func() {
		defer close(received)
		defer s.transport.streams.remove(s.budget)
		s.receive(intake, messages)
	}()

	select {
	case <-ctx.Done():
	case <-closing:
	}
	close(s.stop)
	stopIntake()
	s.transport.streams.quiet(s.budget)
	s.sending.Lock()
	close(s.out)
	s.sending.Unlock()
	timer := time.AfterFunc(s.transport.config.DrainTimeout, abandon)
	defer timer.Stop()
	for range cap(s.slots) { // all of them: no handler runs any more
		s.slots <- struct{}{}
	}
	select {
	case <-received:
	case <-time.After(flushTimeout):
		// Google's client (v2.6.0) does not end while it waits to open a stream again, up to 30 s at a time. Nothing
		// can be delivered any more, and its goroutine ends with the client.
		s.log.Warn("the service does not answer: acks may be lost, and their messages be delivered again")
	}
	s.results.Wait()
}

// receive pulls until intake ends, over every failure of the service.
func (s *subscription) receive(intake, messages context.Context) {
	// Google's own context for a message ends with the intake, and what was handed to a handler is to finish.
	handle := func(_ context.Context, m *pubsub.Message) { s.handle(messages, m) }
	retry := firstReceiveRetry
	for {
		began := time.Now()
		err := s.client().Receive(intake, handle)
		if intake.Err() != nil {
			return
		}
		if time.Since(began) > lastReceiveRetry {
			retry = firstReceiveRetry // it had worked
		}
		s.log.Error("receiving stopped", slog.Any("error", err), slog.Duration("retry_in", retry))
		select {
		case <-intake.Done():
			return
		case <-time.After(retry):
		}
		retry = min(2*retry, lastReceiveRetry)
		if status.Code(err) == codes.NotFound {
			s.transport.resources.forgetSubscription(s.topic, s.config)
			if _, err := s.transport.resources.ensureSubscription(intake, s.topic, s.config); err != nil {
				s.log.Error("creating the subscription again", slog.Any("error", err))
			}
		}
	}
}

// client returns a new client for the subscription, because one client receives only once at a time.
func (s *subscription) client() *pubsub.Subscriber {
	client := s.transport.client.Subscriber(s.name)
	client.ReceiveSettings = pubsub.ReceiveSettings{
		MaxExtension: maxLease,
		// Both, or exactly-once delivery raises the extension to 60 s and a killed consumer's messages stay away as long.
		MinDurationPerAckExtension: s.settings.AckDeadline,
		MaxDurationPerAckExtension: s.settings.AckDeadline,
		MaxOutstandingMessages:     s.config.Concurrency + s.settings.Prefetch,
		MaxOutstandingBytes:        s.budget,
		NumGoroutines:              1,
		// No ShutdownOptions: pullStreams says why. The client's endless wait is bounded by our handle, which returns
		// within the drain timeout.
	}
	return client
}
