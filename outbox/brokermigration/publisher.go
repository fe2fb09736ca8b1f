package brokermigration

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/cloudheader"
	"github.com/millrace-go/millrace/transport"
)

// publisher implements transport.BatchPublisher. It publishes to the broker that the record names, CloudEvents with the header names of
// that broker.
type publisher struct{ transport *Transport }

func (p publisher) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	return errors.Join(p.PublishBatch(msgs[0].Context(), topic, msgs)...)
}

func (p publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	broker, token, err := p.transport.process.begin()
	if err != nil {
		return all(msgs, err)
	}
	to := p.transport.to
	if broker == p.transport.from.Name() {
		to = p.transport.from
	}
	finish := sync.OnceValue(func() (counts bool) { return p.transport.process.finish(token) })
	defer finish() // also when the broker's publisher panics, which the relay survives
	named := make([]*message.Message, len(msgs))
	for i, msg := range msgs {
		named[i] = cloudheader.For(broker, msg)
	}
	results := to.publisher.PublishBatch(ctx, topic, named)
	if !finish() {
		return all(msgs, errStale)
	}
	return results
}

// Close implements message.Publisher. The transport owns the publishers.
func (publisher) Close() error { return nil }

// all is the same error for each message: it says nothing against any of them.
func all(msgs []*message.Message, err error) []error {
	results := make([]error, len(msgs))
	for i := range results {
		results[i] = fmt.Errorf("%w: %w", transport.ErrUnavailable, err)
	}
	return results
}
