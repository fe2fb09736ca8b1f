package main

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/transport"
)

// watermillForwarder is Watermill's outbox: its forwarder component behind watermill-sql's subscriber, which is set up
// for speed as watermillSQL says. It publishes message by message, each before the next is read: that is its design.
type watermillForwarder struct{ watermillSQL }

func (watermillForwarder) name() string { return "forwarder" }

func (f watermillForwarder) note() string {
	return "Watermill's forwarder with watermill-sql's subscriber, batches of " + thousands(float64(f.batch)) +
		"; in a time box where it does not get through"
}

// write puts the messages into the envelopes that the forwarder's publisher makes.
func (f watermillForwarder) write(ctx context.Context, pool *pgxpool.Pool, schema string, events []event) error {
	var enveloped collector
	publisher := forwarder.NewPublisher(&enveloped, forwarder.PublisherConfig{ForwarderTopic: topic})
	for _, e := range events {
		msg := message.NewMessage(e.id, e.payload)
		transport.SetKey(msg, e.key)
		if err := publisher.Publish(topic, msg); err != nil {
			return err
		}
	}
	return f.insert(ctx, pool, schema, enveloped.msgs)
}

// collector is a publisher that keeps the messages.
type collector struct{ msgs []*message.Message }

func (c *collector) Publish(_ string, msgs ...*message.Message) error {
	c.msgs = append(c.msgs, msgs...)
	return nil
}

func (*collector) Close() error { return nil }

func (f watermillForwarder) drain(ctx context.Context, pool *pgxpool.Pool, schema string, to *sink) error {
	subscriber, err := f.subscriber(pool, schema)
	if err != nil {
		return err
	}
	fwd, err := forwarder.NewForwarder(subscriber, to, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: topic})
	if err != nil {
		return err
	}
	running := context.WithoutCancel(ctx) // the transaction that has read a batch records it
	ended := make(chan error, 1)
	go func() { ended <- fwd.Run(running) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	return errors.Join(f.recorded(ctx, pool, schema, to), fwd.Close(), <-ended)
}
