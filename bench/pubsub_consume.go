package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	gcp "cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-googlecloud/v2/pkg/googlecloud"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/bench/internal/wait"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// outstanding is the default of Google's client for messages that are delivered and not acked. Ours is made up of
// prefetched messages and those in hand.
var (
	outstanding        = gcp.DefaultReceiveSettings.MaxOutstandingMessages
	consumeConcurrency = outstanding - pubsub.SubscriptionConfig{}.WithDefaults().Prefetch
)

// theirAcks is enough time for watermill-googlecloud to notice acks; they are sent each 100 ms.
const theirAcks = 300 * time.Millisecond

// consuming measures one contestant on a subscription that is full when it starts: the rate is that from the first
// message to the last. start notes each message in the sink and acks it; stop returns when the acks are out.
func (p *pubsubbing) consuming(b broker, name, note string, n int, start func(context.Context, *room, *sink) (stop func() error, err error)) entrant {
	name += b.suffix(", ")
	return entrant{name, note, func(ctx context.Context) (rate float64, err error) {
		defer func() {
			if err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			}
		}()
		r, err := b.open(ctx)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, r.close()) }()
		events := newBacklog(n)
		if err := errors.Join(r.subscribe(ctx, false), r.fill(ctx, events)); err != nil {
			return 0, err
		}
		all := make(chan struct{})
		to := newSink(n, func() { close(all) })
		stop, err := start(ctx, r, to)
		if err != nil {
			return 0, err
		}
		timeout := time.NewTimer(p.env.size.box)
		defer timeout.Stop()
		select {
		case <-all:
		case <-timeout.C:
			err = fmt.Errorf("not all of %d messages came within %v", n, p.env.size.box)
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err := errors.Join(err, stop()); err != nil {
			return 0, err
		}
		if err := to.check(events); err != nil {
			return 0, err
		}
		if left, err := r.unsettled(ctx); err != nil || left > 0 {
			return 0, errors.Join(fmt.Errorf("%d of %d messages were not delivered once and acked", left, n), err)
		}
		return to.rate(), nil
	}}
}

// fill publishes the events.
func (r *room) fill(ctx context.Context, events []event) error {
	p, err := bare(ctx, r, events)
	if err != nil {
		return err
	}
	return errors.Join(p.send(ctx, 0, len(events)), p.stop())
}

// receive is Google's client.
func receive(ctx context.Context, r *room, to *sink) (func() error, error) {
	client, err := r.client(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var receiving sync.WaitGroup
	var ended error
	receiving.Go(func() {
		ended = client.Subscriber(r.subscriptionName()).Receive(ctx, func(_ context.Context, m *gcp.Message) {
			to.note(m.Attributes[idAttribute])
			m.Ack()
		})
	})
	return func() error {
		cancel()
		receiving.Wait()
		return errors.Join(ended, client.Close())
	}, nil
}

// subscriber is ours.
func subscriber(ctx context.Context, r *room) (*pubsub.Transport, message.Subscriber, error) {
	config := r.config()
	config.Logger = slog.New(slog.DiscardHandler)
	t, err := pubsub.New(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	s, err := t.Subscriber(transport.SubscriberConfig{Consumer: consumerName, Concurrency: consumeConcurrency})
	if err != nil {
		return nil, nil, errors.Join(err, t.Close())
	}
	return t, s, nil
}

// loop is our subscriber alone.
func loop(ctx context.Context, r *room, to *sink) (func() error, error) {
	t, s, err := subscriber(ctx, r)
	if err != nil {
		return nil, err
	}
	return drainTo(ctx, s, to, t.Close)
}

// theirLoop is watermill-googlecloud's subscriber. Its Close nacks some of the messages that were acked just before.
func theirLoop(ctx context.Context, r *room, to *sink) (func() error, error) {
	s, err := googlecloud.NewSubscriber(googlecloud.SubscriberConfig{
		ProjectID: r.project, ClientOptions: r.options,
		GenerateSubscriptionName: googlecloud.TopicSubscriptionNameWithSuffix("." + consumerName),
	}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	return drainTo(ctx, s, to, func() error {
		wait.For(ctx, theirAcks)
		return s.Close()
	})
}

// drainTo acks what the subscriber delivers.
func drainTo(ctx context.Context, s message.Subscriber, to *sink, stop func() error) (func() error, error) {
	messages, err := s.Subscribe(ctx, topic)
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	var draining sync.WaitGroup
	draining.Go(func() {
		for msg := range messages {
			to.note(msg.UUID)
			msg.Ack()
		}
	})
	return func() error {
		err := stop()
		draining.Wait()
		return err
	}, nil
}

// routed is our subscriber behind Watermill's router.
func routed(ctx context.Context, r *room, to *sink) (func() error, error) {
	t, s, err := subscriber(ctx, r)
	if err != nil {
		return nil, err
	}
	stop, err := route(ctx, func(router *message.Router) {
		router.AddConsumerHandler(handlerName, topic, s, func(msg *message.Message) error {
			to.note(msg.UUID)
			return nil
		})
	})
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return func() error { return errors.Join(stop(), t.Close()) }, nil
}

// route runs a router with the handlers that setup adds until stop is called.
func route(ctx context.Context, setup func(*message.Router)) (stop func() error, err error) {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: settleTimeout}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	setup(router)
	var running sync.WaitGroup
	var ended error
	ran := make(chan struct{})
	running.Go(func() {
		defer close(ran)
		ended = router.Run(ctx)
	})
	select {
	case <-router.Running():
	case <-ran:
		return nil, fmt.Errorf("the router does not run: %w", ended)
	}
	return func() error {
		err := router.Close()
		running.Wait()
		return errors.Join(err, ended)
	}, nil
}
