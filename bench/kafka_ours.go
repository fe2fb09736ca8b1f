package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// kafkaConcurrency is how many messages of ours are in hand at once.
const kafkaConcurrency = 500

// atLeastOnce is transport/kafka at least once: a handler waits for its output's ack, and offsets are committed each 100 ms.
var atLeastOnce = copier{
	name: "at least once",
	note: "transport/kafka at its defaults behind Watermill's router, 500 messages in hand, offsets committed each 100 ms",
	done: (*cluster).produced,
	start: func(ctx context.Context, c *cluster, t *tap) (func() error, error) {
		o, err := c.ours(ctx, kafka.Config{Dial: t.DialContext})
		if err != nil {
			return nil, err
		}
		return c.route(ctx, o.subscriber, o.publisher, nil, o.transport.Close)
	},
}

// own is transport/kafka with what was made of it.
type own struct {
	transport  *kafka.Transport
	publisher  message.Publisher
	subscriber message.Subscriber
}

func (c *cluster) ours(ctx context.Context, config kafka.Config) (o own, err error) {
	config.Brokers = c.brokers
	config.Producer.Compression = kafka.Uncompressed
	config.Logger = slog.New(slog.DiscardHandler)
	if o.transport, err = kafka.New(ctx, config); err != nil {
		return own{}, err
	}
	if o.publisher, err = o.transport.Publisher(); err == nil {
		o.subscriber, err = o.transport.Subscriber(transport.SubscriberConfig{Consumer: c.group, Concurrency: kafkaConcurrency, Ordered: true})
	}
	if err != nil {
		return own{}, errors.Join(err, o.transport.Close())
	}
	return o, nil
}

func batched(name string, batch int) string {
	if batch == perTransaction {
		return name
	}
	return name + " " + strconv.Itoa(batch)
}

// transactionalLoop is transport/kafka in transactions, with a bare loop.
func transactionalLoop(batch int) copier {
	return copier{
		name: batched("transactional", batch),
		note: fmt.Sprintf("transport/kafka with transactional delivery, a loop that publishes and acks, up to %d messages in a transaction", batch),
		done: (*cluster).consumed,
		start: func(ctx context.Context, c *cluster, t *tap) (func() error, error) {
			o, err := c.transactional(ctx, t, batch)
			if err != nil {
				return nil, err
			}
			messages, err := o.subscriber.Subscribe(ctx, c.in)
			if err != nil {
				return nil, errors.Join(err, o.transport.Close())
			}
			var looping sync.WaitGroup
			var failed error
			looping.Go(func() {
				for msg := range messages {
					output := copied(msg)
					output.SetContext(msg.Context())
					if err := o.publisher.Publish(c.out, output); err != nil {
						failed = err
						msg.Nack()
						continue
					}
					msg.Ack()
				}
			})
			return func() error {
				err := o.transport.Close()
				looping.Wait()
				return errors.Join(failed, err)
			}, nil
		},
	}
}

// transactionalRouter is transport/kafka in transactions as a service has it.
var transactionalRouter = copier{
	name: "transactional router",
	note: "transport/kafka with transactional delivery behind Watermill's router, 500 messages in hand, otherwise at its defaults",
	done: (*cluster).consumed,
	start: func(ctx context.Context, c *cluster, t *tap) (func() error, error) {
		o, err := c.transactional(ctx, t, perTransaction)
		if err != nil {
			return nil, err
		}
		return c.route(ctx, o.subscriber, o.publisher, []message.HandlerMiddleware{middleware.Unit}, o.transport.Close)
	},
}

func (c *cluster) transactional(ctx context.Context, t *tap, batch int) (own, error) {
	return c.ours(ctx, kafka.Config{Dial: t.DialContext, Delivery: kafka.Transactional, Transaction: kafka.Transaction{MaxRecords: batch}})
}
