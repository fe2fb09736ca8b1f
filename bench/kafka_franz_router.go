package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/transport"
)

// franzRouter is franz-go's session behind Watermill's router, with the least that lies between them. It is cheaper than a transport can
// be: it keeps no order within a key, retries nothing, and hands out the next messages only after a transaction.
var franzRouter = copier{
	name: "franz-go router",
	note: fmt.Sprintf("the same session behind Watermill's router, without order within a key and without retries, %d messages in a transaction", perTransaction),
	done: (*cluster).consumed,
	start: func(ctx context.Context, c *cluster, t *tap) (func() error, error) {
		s, err := c.franzSession(t)
		if err != nil {
			return nil, err
		}
		a := &franzAdapter{session: s, messages: make(chan *message.Message, perTransaction)}
		a.ctx, a.cancel = context.WithCancel(ctx)
		a.running.Go(func() { a.ended = a.loop() })
		return c.route(ctx, a, franzOutput{a}, nil, func() error {
			s.Close()
			return a.ended
		})
	},
}

// franzAdapter is the subscriber.
type franzAdapter struct {
	session  *kgo.GroupTransactSession
	messages chan *message.Message
	ctx      context.Context //nolint:containedctx // ended by Close
	cancel   context.CancelFunc
	running  sync.WaitGroup
	ended    error

	results sync.WaitGroup // of the outputs of a transaction
	failed  firstError
}

// Subscribe implements message.Subscriber.
func (a *franzAdapter) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return a.messages, nil
}

// Close implements message.Subscriber.
func (a *franzAdapter) Close() error {
	a.cancel()
	a.running.Wait()
	return nil
}

func (a *franzAdapter) loop() error {
	defer close(a.messages)
	for a.ctx.Err() == nil {
		fetches := a.session.PollRecords(a.ctx, perTransaction)
		if err := fetches.Err(); err != nil && a.ctx.Err() == nil {
			return err
		}
		if fetches.NumRecords() == 0 {
			continue
		}
		if err := a.session.Begin(); err != nil {
			return err
		}
		nacked := false
		for n := 0; ; {
			n += fetches.NumRecords()
			nacked = a.handle(fetches) || nacked
			if n >= perTransaction {
				break
			}
			more, cancel := context.WithTimeout(a.ctx, franzFill)
			fetches = a.session.PollRecords(more, perTransaction-n)
			cancel()
			if fetches.NumRecords() == 0 {
				break
			}
		}
		// The end of a run must not abort the transaction.
		committed, err := a.session.End(context.WithoutCancel(a.ctx), kgo.TryCommit)
		a.results.Wait()
		if err := errors.Join(err, a.failed.get()); err != nil {
			return err
		}
		if !committed || nacked {
			return errors.New("a transaction was aborted, or a message nacked")
		}
	}
	return nil
}

// handle hands out records and waits until all are acked, or tells that one was not.
func (a *franzAdapter) handle(fetches kgo.Fetches) (nacked bool) {
	all := make([]*message.Message, 0, fetches.NumRecords())
	fetches.EachRecord(func(r *kgo.Record) {
		msg := message.NewMessage(headerID(r), r.Value)
		transport.SetKey(msg, string(r.Key))
		all = append(all, msg)
		a.messages <- msg
	})
	for _, msg := range all {
		select {
		case <-msg.Acked():
		case <-msg.Nacked():
			nacked = true
		}
	}
	return nacked
}

// franzOutput is the publisher of what a franzAdapter's messages become.
type franzOutput struct{ *franzAdapter }

// Publish implements message.Publisher.
func (o franzOutput) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		o.results.Add(1)
		r := &kgo.Record{Topic: topic, Key: []byte(transport.Key(msg)), Value: msg.Payload, Headers: []kgo.RecordHeader{{Key: idAttribute, Value: []byte(msg.UUID)}}}
		o.session.Produce(context.WithoutCancel(o.ctx), r, func(_ *kgo.Record, err error) {
			o.failed.note(err)
			o.results.Done()
		})
	}
	return nil
}

// Close does nothing: the subscriber's does.
func (o franzOutput) Close() error { return nil }
