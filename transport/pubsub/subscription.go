package pubsub

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// flushTimeout bounds the sending of acks after the last handler has ended.
const flushTimeout = 3 * time.Second

// subscription is one call of Subscribe: what is between an intake and the handlers.
type subscription struct {
	transport *Transport
	config    transport.SubscriberConfig
	settings  SubscriptionConfig // of this consumer
	topic     string
	name      string // full name of the Pub/Sub subscription
	log       *slog.Logger
	observer  *subscriptionObserver

	sending sync.RWMutex          // held for reading while sending to out, for writing to close it
	out     chan *message.Message // closed after stop
	slots   chan struct{}         // one per message that is delivered and neither acked nor nacked
	stop    chan struct{}         // closed when ctx or the subscriber ends

	mu      sync.Mutex     // guards results.Go against results.Wait
	flushed bool           // nobody waits for results any more
	results sync.WaitGroup // waits for what becomes of acks and nacks with exactly-once delivery
}

// intake gets messages from Pub/Sub and hands them to the subscription's deliver until ctx ends. It returns when each
// has its ack or nack. messages is the parent of the messages' contexts; it outlives ctx, so that running handlers can
// finish.
type intake func(ctx, messages context.Context)

func newSubscription(t *Transport, config transport.SubscriberConfig, topic, name string) *subscription {
	return &subscription{
		transport: t,
		config:    config,
		settings:  t.config.subscription(config.Consumer),
		topic:     topic,
		name:      name,
		log:       t.log.With(slog.String("topic", topic), slog.String("consumer", config.Consumer)),
		observer:  t.observer.subscription(topic, config.Consumer),
		out:       make(chan *message.Message),
		slots:     make(chan struct{}, config.Concurrency),
		stop:      make(chan struct{}),
	}
}

// run delivers until ctx ends or closing is closed, and returns after the last ack was sent, or could not be sent within
// flushTimeout.
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
	close(s.stop)
	stopTaking()
	s.sending.Lock()
	close(s.out)
	s.sending.Unlock()
	timer := time.AfterFunc(s.transport.config.DrainTimeout, abandon)
	defer timer.Stop()
	for range cap(s.slots) { // all of them: no handler runs any more
		s.slots <- struct{}{}
	}
	select {
	case <-taken:
	case <-time.After(flushTimeout):
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
	o := s.handOver(ctx, m, delivery)
	s.observer.delivered(ctx, o, delivery.asked())
	return o
}

func (s *subscription) handOver(ctx context.Context, m *pubsub.Message, delivery *delivery) outcome {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-s.stop:
		return undelivered
	case <-delivery.giveUp:
		return undelivered
	}
	ctx, cancel := context.WithCancel(transport.WithDelivery(ctx, delivery))
	defer cancel()
	msg := unmarshal(m)
	msg.Payload = bytes.Clone(m.Data) // m may come again from here, or go to the dead-letter topic
	msg.SetContext(ctx)
	if !s.send(msg, delivery.giveUp) {
		return undelivered
	}
	return await(ctx, msg)
}

// send hands the message over. It returns false when the subscription was closed, or giveUp, before a handler took it.
func (s *subscription) send(msg *message.Message, giveUp <-chan struct{}) bool {
	s.sending.RLock()
	defer s.sending.RUnlock()
	select {
	case <-s.stop: // of two ready cases the next select takes any, and out may be closed
		return false
	case <-giveUp: // an earlier message of the key may have been given up
		return false
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

func await(ctx context.Context, msg *message.Message) outcome {
	select {
	case <-msg.Acked():
		return acked
	case <-msg.Nacked():
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
