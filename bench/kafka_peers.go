package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"
)

// franzFill is how long franz-go's transactions wait for more records, when their first poll had fewer than fit in.
const franzFill = 50 * time.Millisecond

// franzGo is franz-go's GroupTransactSession as its documentation has it, with a bare loop, and without what would slow it
// here: it does not wait for more records to send at once, and does not compress what does not compress.
func franzGo(batch int) copier {
	return copier{
		name: batched("franz-go", batch),
		note: fmt.Sprintf("GroupTransactSession with a loop, %d messages in a transaction", batch),
		done: (*cluster).consumed,
		start: func(ctx context.Context, c *cluster, t *tap) (func() error, error) {
			s, err := c.franzSession(t)
			if err != nil {
				return nil, err
			}
			ctx, cancel := context.WithCancel(ctx)
			var running sync.WaitGroup
			var ended error
			running.Go(func() { ended = franzLoop(ctx, s, batch) })
			return func() error {
				cancel()
				running.Wait()
				s.Close()
				return ended
			}, nil
		},
	}
}

func (c *cluster) franzSession(t *tap) (*kgo.GroupTransactSession, error) {
	return kgo.NewGroupTransactSession(
		kgo.SeedBrokers(c.brokers...), kgo.Dialer(t.DialContext),
		kgo.ConsumerGroup(c.group), kgo.ConsumeTopics(c.in), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.TransactionalID(c.group), kgo.DefaultProduceTopic(c.out),
		kgo.ProducerLinger(0), kgo.ProducerBatchCompression(kgo.NoCompression()),
	)
}

// franzLoop copies in transactions until ctx ends.
func franzLoop(ctx context.Context, s *kgo.GroupTransactSession, batch int) error {
	for ctx.Err() == nil {
		fetches := s.PollRecords(ctx, batch)
		if err := fetches.Err(); err != nil && ctx.Err() == nil {
			return err
		}
		if fetches.NumRecords() == 0 {
			continue
		}
		if err := s.Begin(); err != nil {
			return err
		}
		var results sync.WaitGroup
		var failed firstError
		for n := 0; ; {
			n += fetches.NumRecords()
			fetches.EachRecord(func(r *kgo.Record) {
				results.Add(1)
				s.Produce(ctx, &kgo.Record{Key: r.Key, Value: r.Value, Headers: r.Headers}, func(_ *kgo.Record, err error) {
					failed.note(err)
					results.Done()
				})
			})
			if n >= batch {
				break
			}
			more, cancel := context.WithTimeout(ctx, franzFill)
			fetches = s.PollRecords(more, batch-n)
			cancel()
			if fetches.NumRecords() == 0 {
				break
			}
		}
		// The end of a run must not abort the transaction.
		committed, err := s.End(context.WithoutCancel(ctx), kgo.TryCommit)
		results.Wait()
		if err := errors.Join(err, failed.get()); err != nil {
			return err
		}
		if !committed {
			return errors.New("a transaction was aborted")
		}
	}
	return nil
}

// firstError keeps the first error of several goroutines.
type firstError struct {
	mu  sync.Mutex
	err error
}

func (f *firstError) note(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
}

func (f *firstError) get() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// watermillKafka is watermill-kafka with its defaults behind a router, but for where it begins and for the protocol's
// version, of which its own, 1.0.0, is refused by Apache Kafka 4.
var watermillKafka = copier{
	name: "watermill-kafka",
	note: "its subscriber and publisher at their defaults behind Watermill's router, at least once",
	done: (*cluster).produced,
	slow: true,
	start: func(ctx context.Context, c *cluster, t *tap) (func() error, error) {
		subscriber := kafka.DefaultSaramaSubscriberConfig()
		subscriber.Consumer.Offsets.Initial = sarama.OffsetOldest
		publisher := kafka.DefaultSaramaSyncPublisherConfig()
		for _, config := range []*sarama.Config{subscriber, publisher} {
			config.Version = sarama.V3_6_0_0
			config.Net.Proxy.Enable, config.Net.Proxy.Dialer = true, t
		}
		s, err := kafka.NewSubscriber(kafka.SubscriberConfig{
			Brokers: c.brokers, ConsumerGroup: c.group, Unmarshaler: kafka.DefaultMarshaler{}, OverwriteSaramaConfig: subscriber,
		}, watermill.NopLogger{})
		if err != nil {
			return nil, err
		}
		p, err := kafka.NewPublisher(kafka.PublisherConfig{
			Brokers: c.brokers, Marshaler: kafka.DefaultMarshaler{}, OverwriteSaramaConfig: publisher,
		}, watermill.NopLogger{})
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		return c.route(ctx, s, p, nil, func() error { return errors.Join(p.Close(), s.Close()) })
	},
}

// route copies through Watermill's router.
func (c *cluster) route(ctx context.Context, s message.Subscriber, p message.Publisher, guards []message.HandlerMiddleware, closing func() error) (func() error, error) {
	stop, err := route(ctx, func(router *message.Router) {
		router.AddMiddleware(guards...)
		router.AddHandler(handlerName, c.in, s, c.out, p, func(msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{copied(msg)}, nil
		})
	})
	if err != nil {
		return nil, errors.Join(err, closing())
	}
	return func() error { return errors.Join(stop(), closing()) }, nil
}

// copied is the output of a message. It has the same ID, by which it is known again, and the same metadata: our key.
func copied(msg *message.Message) *message.Message {
	output := message.NewMessage(msg.UUID, msg.Payload)
	for name, value := range msg.Metadata {
		output.Metadata.Set(name, value)
	}
	return output
}
