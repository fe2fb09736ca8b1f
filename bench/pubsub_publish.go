package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	gcp "cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-googlecloud/v2/pkg/googlecloud"
	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

const (
	// publishCall is how many messages a call has: more would not end within watermill-googlecloud's 5 s.
	publishCall = 100
	// publishCallers is how many calls are in flight. A relay has up to one for each of its 16 shards.
	publishCallers = 8
)

// publishing is a contestant's way to publish the events, ready for it. send publishes those from the one to the other.
type publishing struct {
	send func(ctx context.Context, from, to int) error
	stop func() error
}

// publishing measures one contestant, after a call that is not measured: it opens the connections.
func (p *pubsubbing) publishing(b broker, name, note string, n int, prepare func(context.Context, *room, []event) (publishing, error)) entrant {
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
		if err := r.subscribe(ctx, false); err != nil {
			return 0, err
		}
		events := newBacklog(n + publishCall)
		who, err := prepare(ctx, r, events)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, who.stop()) }()
		if err := who.send(ctx, n, n+publishCall); err != nil {
			return 0, err
		}
		began := time.Now()
		if err := who.send(ctx, 0, n); err != nil {
			return 0, err
		}
		rate = float64(n) / time.Since(began).Seconds()

		ids, err := r.pull(ctx, len(events))
		if err != nil {
			return 0, err
		}
		there := newSink(len(events), func() {})
		for _, id := range ids {
			there.note(id)
		}
		return rate, there.check(events)
	}}
}

// inCalls publishes in calls of several messages, by callers that wait for each of theirs.
func inCalls(ctx context.Context, callers, from, to int, call func(ctx context.Context, from, to int) error) error {
	var next atomic.Int64
	next.Store(int64(from))
	group, ctx := errgroup.WithContext(ctx)
	for range callers {
		group.Go(func() error {
			for ctx.Err() == nil {
				end := int(next.Add(publishCall))
				if end-publishCall >= to {
					return nil
				}
				if err := call(ctx, end-publishCall, min(end, to)); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	}
	return group.Wait()
}

func watermillMessages(events []event) []*message.Message {
	msgs := make([]*message.Message, len(events))
	for i, e := range events {
		msgs[i] = message.NewMessage(e.id, e.payload)
	}
	return msgs
}

func bareMessages(events []event) []*gcp.Message {
	msgs := make([]*gcp.Message, len(events))
	for i, e := range events {
		msgs[i] = &gcp.Message{Data: e.payload, Attributes: map[string]string{idAttribute: e.id}}
	}
	return msgs
}

// ours is transport/pubsub with its defaults.
func ours(callers int) func(context.Context, *room, []event) (publishing, error) {
	return func(ctx context.Context, r *room, events []event) (publishing, error) {
		t, err := pubsub.New(ctx, r.config())
		if err != nil {
			return publishing{}, err
		}
		p, err := t.Publisher()
		if err != nil {
			return publishing{}, errors.Join(err, t.Close())
		}
		batches, msgs := p.(transport.BatchPublisher), watermillMessages(events)
		return publishing{stop: t.Close, send: func(ctx context.Context, from, to int) error {
			return inCalls(ctx, callers, from, to, func(ctx context.Context, from, to int) error {
				return errors.Join(batches.PublishBatch(ctx, topic, msgs[from:to])...)
			})
		}}, nil
	}
}

// bare is Google's client as its documentation has it: one goroutine that hands over everything.
func bare(ctx context.Context, r *room, events []event) (publishing, error) {
	client, err := r.client(ctx)
	if err != nil {
		return publishing{}, err
	}
	p, msgs := client.Publisher(r.topicName()), bareMessages(events)
	stop := func() error {
		p.Stop()
		return client.Close()
	}
	return publishing{stop: stop, send: func(ctx context.Context, from, to int) error {
		results := make([]*gcp.PublishResult, 0, to-from)
		for _, msg := range msgs[from:to] {
			results = append(results, p.Publish(ctx, msg))
		}
		for _, result := range results {
			if _, err := result.Get(ctx); err != nil {
				return err
			}
		}
		return nil
	}}, nil
}

// theirs is watermill-googlecloud with its defaults.
func theirs(callers int) func(context.Context, *room, []event) (publishing, error) {
	return func(_ context.Context, r *room, events []event) (publishing, error) {
		p, err := googlecloud.NewPublisher(googlecloud.PublisherConfig{ProjectID: r.project, ClientOptions: r.options}, watermill.NopLogger{})
		if err != nil {
			return publishing{}, err
		}
		msgs := watermillMessages(events)
		return publishing{stop: p.Close, send: func(ctx context.Context, from, to int) error {
			return inCalls(ctx, callers, from, to, func(_ context.Context, from, to int) error {
				return p.Publish(topic, msgs[from:to]...)
			})
		}}, nil
	}
}
