package framework_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// With Kafka's transactions a handler has no transaction of the database, and what it publishes is part of the message's:
// nothing of an attempt that fails is ever seen. The relay, which consumes nothing, publishes all the same.
func TestServiceOnKafkaTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kafka")
	w.drivers = []transport.Driver{kafka.NewDriver(kafka.Config{Brokers: devtest.Start(t, devstack.Kafka).KafkaBrokers(), Delivery: kafka.Transactional})}
	svc := w.service(w.config())
	var attempts, claimed atomic.Int64
	doubles := make(chan int, 10)
	require.NoError(t, handle(svc, w.name("double"), w.topic("numbers"), func(ctx context.Context, n int) error {
		if _, ok := pgtx.From(ctx); ok {
			claimed.Add(1)
		}
		if err := publish(ctx, w.topic("doubles"), framework.EventFrom(ctx).Key, 2*n); err != nil {
			return err
		}
		if attempts.Add(1) == 1 {
			return errors.New("not at the first attempt")
		}
		return nil
	}))
	require.NoError(t, handle(svc, w.name("collect"), w.topic("doubles"), func(_ context.Context, n int) error {
		doubles <- n
		return nil
	}))
	stop := w.start(svc)
	require.NoError(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
		return errors.Join(publish(ctx, w.topic("numbers"), "a", 1), publish(ctx, w.topic("numbers"), "a", 2))
	}))
	w.eventually("both doubles", func() bool { return len(doubles) >= 2 })
	stop()
	close(doubles)
	got := map[int]int{}
	for n := range doubles {
		got[n]++
	}
	assert.Equal(t, map[int]int{2: 1, 4: 1}, got)
	assert.Equal(t, int64(3), attempts.Load())
	assert.Zero(t, claimed.Load())
}

// TestRejectOnKafkaTransactions: an event that cannot be decoded stopped its partition for ever, because no claim makes a
// dead letter of it. Now it is one of the broker's, and the event behind it is handled.
func TestRejectOnKafkaTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kafka")
	brokers := devtest.Start(t, devstack.Kafka).KafkaBrokers()
	w.drivers = []transport.Driver{kafka.NewDriver(kafka.Config{Brokers: brokers, Delivery: kafka.Transactional})}
	svc := w.service(w.config())
	got := make(chan int, 10)
	require.NoError(t, handle(svc, w.name("count"), w.topic("numbers"), func(_ context.Context, n int) error {
		got <- n
		return nil
	}))
	w.start(svc)
	require.NoError(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
		return errors.Join(publish(ctx, w.topic("numbers"), "a", json.RawMessage(`"no number"`)), publish(ctx, w.topic("numbers"), "a", 2))
	}))
	assert.Equal(t, 2, next(t, got))

	reader, err := kafka.New(t.Context(), kafka.Config{Brokers: brokers})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, reader.Close()) })
	s, err := reader.Subscriber(transport.SubscriberConfig{Consumer: transport.DeadLetterConsumer})
	require.NoError(t, err)
	deads, err := s.Subscribe(t.Context(), transport.DeadLetterTopic(w.topic("numbers"), "labour."+w.name("count")))
	require.NoError(t, err)
	dead := next(t, deads)
	assert.JSONEq(t, `"no number"`, string(dead.Payload))
	assert.Contains(t, dead.Metadata[transport.DeadErrorMetadata], "decode the payload as int")
	dead.Ack()
}

// Where the relay is apart, a service wakes it; handlers and relays of two processes share the work.
func TestRelayApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pubsub")
	cfg := w.config()
	cfg.Outbox.Relay = framework.Apart
	api := w.service(cfg)
	arrived := make(chan int, 1)
	require.NoError(t, handle(api, w.name("arrive"), w.topic("numbers"), func(_ context.Context, n int) error {
		arrived <- n
		return nil
	}))
	w.start(api)
	require.NoError(t, api.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
		return publish(ctx, w.topic("numbers"), "", 7)
	}))
	assert.Equal(t, 1, w.get(`select count(*) from {s}.outbox`), "nobody forwards it yet")
	w.start(w.service(w.config()))
	assert.Equal(t, 7, next(t, arrived))
}

// Events of a key are handled one after the other, and those behind one that failed wait for it.
func TestOrderedHandler(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	cfg.Handlers = map[string]framework.Handler{w.name("list"): {Ordered: true}}
	svc := w.service(cfg)
	var refused atomic.Bool
	list := make(chan int, 100)
	require.NoError(t, handle(svc, w.name("list"), w.topic("numbers"), func(_ context.Context, n int) error {
		if n == 3 && refused.CompareAndSwap(false, true) {
			return errors.New("not yet")
		}
		list <- n
		return nil
	}))
	unordered := make(chan int, 100)
	require.NoError(t, handle(svc, w.name("count"), w.topic("numbers"), func(_ context.Context, n int) error {
		unordered <- n
		return nil
	}))
	w.start(svc)
	for n := range 20 {
		require.NoError(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
			return publish(ctx, w.topic("numbers"), "key", n)
		}))
	}
	for n := range 20 {
		assert.Equal(t, n, next(t, list))
	}
	w.eventually("the other handler, too", func() bool { return len(unordered) == 20 })
}

// Handlers with Kafka's transactions hold no connection to PostgreSQL, so the pool does not bound their concurrency.
func TestKafkaTransactionsNeedNoConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kafka")
	w.drivers = []transport.Driver{kafka.NewDriver(kafka.Config{Brokers: devtest.Start(t, devstack.Kafka).KafkaBrokers(), Delivery: kafka.Transactional})}
	cfg := w.config()
	cfg.Postgres.MaxConnections = 8
	cfg.Handlers = map[string]framework.Handler{w.name("count"): {Concurrency: 100}}
	svc := w.service(cfg)
	got := make(chan int, 1)
	require.NoError(t, handle(svc, w.name("count"), w.topic("numbers"), func(_ context.Context, n int) error {
		got <- n
		return nil
	}))
	w.start(svc)
	require.NoError(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error { return publish(ctx, w.topic("numbers"), "a", 1) }))
	assert.Equal(t, 1, next(t, got))
}
