package kafka_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	retry "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/kafka/internal/txn"
)

// The tests of this file show each what one part of a transaction is for: with it each message is copied once, and
// without it some are copied twice.

// required runs a test with everything, and without one thing, where a version of transactions can be without it.
func required(t *testing.T, what txn.Omission, test func(t *testing.T, v txnVersion, with func(kafka.Config) kafka.Config) report) {
	t.Helper()
	t.Parallel()
	inVersions(t, func(t *testing.T, v txnVersion) {
		t.Run("with it", func(t *testing.T) {
			t.Parallel()
			require.Equal(t, report{read: 300}, test(t, v, v.of))
		})
		if what == kafka.WithoutEpoch && v.name == txnV2.name {
			return // the end of each transaction raises it
		}
		t.Run("without it", func(t *testing.T) {
			t.Parallel()
			require.Positive(t, test(t, v, func(c kafka.Config) kafka.Config { return kafka.Without(v.of(c), what) }).duplicates)
		})
	})
}

func hundreds(t *testing.T) *copying {
	t.Helper()
	return newCopying(t, fake(t).ListenAddrs(), 300)
}

// TestGroupMembershipFences: a process that was stopped before it committed its offsets in the transaction goes on after
// another one has copied its messages.
func TestGroupMembershipFences(t *testing.T) {
	required(t, kafka.WithoutMember,
		func(t *testing.T, v txnVersion, with func(kafka.Config) kafka.Config) report {
			t.Helper()
			c := hundreds(t)
			process := newFaultNet(v.withOutputs(kmsg.TxnOffsetCommit, stopProcess))
			config := c.config(kafka.Config{Dial: process.dial})
			config.Transaction.Timeout = time.Minute // it is still open
			p := c.start(t, with(config), nil)
			<-process.happened
			other := c.start(t, v.of(c.config(kafka.Config{})), nil)
			c.await(t)
			process.thaw()
			p.stop(t)
			other.stop(t)
			return c.report(t)
		})
}

// TestStableOffsets: a process that was stopped before the end of its transaction goes on after another one has its
// partitions. The other one must have waited to see how the transaction ends.
func TestStableOffsets(t *testing.T) {
	required(t, kafka.WithoutStable,
		func(t *testing.T, v txnVersion, with func(kafka.Config) kafka.Config) report {
			t.Helper()
			c := hundreds(t)
			process := newFaultNet(v.withOutputs(kmsg.EndTxn, stopProcess))
			config := v.of(c.config(kafka.Config{Dial: process.dial}))
			config.Transaction.Timeout = time.Minute
			p := c.start(t, config, nil)
			<-process.happened
			its := newFaultNet(nil)
			config = c.config(kafka.Config{Dial: its.dial})
			config.Transaction.Timeout = time.Minute
			other := c.start(t, with(config), nil)
			require.Eventually(t, func() bool {
				return c.lag(t) == 0 || its.count(kmsg.OffsetFetch) > 10 && its.count(kmsg.Fetch) == 0 // it asks and asks
			}, wait, time.Millisecond)
			process.thaw()
			p.stop(t)
			require.Eventually(t, func() bool { return its.count(kmsg.Fetch) > 0 }, wait, time.Millisecond)
			other.stop(t)
			// Offsets that went back are read again by whoever is next.
			last := c.start(t, v.of(c.config(kafka.Config{})), nil)
			c.await(t)
			last.stop(t)
			return c.report(t)
		})
}

// TestEpochRefusesWhatIsLate: the end of a transaction is late, and comes when the next one has its outputs but not its
// offsets. Then the process is killed.
func TestEpochRefusesWhatIsLate(t *testing.T) {
	required(t, kafka.WithoutEpoch,
		func(t *testing.T, v txnVersion, with func(kafka.Config) kafka.Config) report {
			t.Helper()
			c := hundreds(t)
			goOn := make(chan struct{})
			resume := sync.OnceFunc(func() { close(goOn) })
			defer resume()
			first := int64(0) // how many outputs the first transaction has, before the next one adds its own
			end := v.withOutputs(kmsg.EndTxn, delayRequest)
			var ended, again atomic.Bool
			process := newFaultNet(func(kind kmsg.Key, n int) fate {
				what := end(kind, n)
				switch {
				case what != pass:
					first = c.outputs(t)
					ended.Store(true)
				case kind == v.first && ended.Load():
					again.Store(true)
					<-goOn
				}
				return what
			})
			config := with(c.config(kafka.Config{Dial: process.dial}))
			config.Transaction.MaxRecords = c.n // one transaction, and one again
			config.Transaction.MaxDelay = time.Second
			config.Transaction.Timeout = 10 * time.Second
			p := c.start(t, config, nil)
			<-process.happened
			require.Eventually(t, func() bool { return again.Load() && c.outputs(t) >= 2*first }, wait, time.Millisecond)
			process.release(t)
			process.kill()
			resume()
			p.stop(t)
			other := c.start(t, v.of(c.config(kafka.Config{})), nil)
			c.await(t)
			other.stop(t)
			return c.report(t)
		})
}

// TestSavepoints: handlers publish and fail, and are run again by Retry.
func TestSavepoints(t *testing.T) {
	t.Parallel()
	failing := func(c *copying, unit message.HandlerMiddleware) func(*message.Message, message.Publisher) error {
		return func(msg *message.Message, publisher message.Publisher) error {
			failed := false
			_, err := retry.Retry{MaxRetries: 3, InitialInterval: time.Nanosecond}.Middleware(unit(func(msg *message.Message) ([]*message.Message, error) {
				err := c.copy(msg, publisher)
				if err == nil && !failed {
					failed = true
					err = errors.New("later")
				}
				return nil, err
			}))(msg)
			return err
		}
	}
	t.Run("with them", func(t *testing.T) {
		t.Parallel()
		c := hundreds(t)
		p := c.start(t, c.config(kafka.Config{}), failing(c, middleware.Unit))
		c.await(t)
		p.stop(t)
		c.exactlyOnce(t)
	})
	t.Run("without them", func(t *testing.T) {
		t.Parallel()
		c := hundreds(t)
		p := c.start(t, c.config(kafka.Config{}), failing(c, func(h message.HandlerFunc) message.HandlerFunc { return h }))
		c.await(t)
		p.stop(t)
		require.Equal(t, 300, c.report(t).duplicates)
	})
}

// TestHandlerErrorsAbortNoTransaction: what a failed delivery has published is dropped.
func TestHandlerErrorsAbortNoTransaction(t *testing.T) {
	t.Parallel()
	c := hundreds(t)
	var mu sync.Mutex
	tried := map[string]bool{}
	process := newFaultNet(nil)
	p := c.start(t, c.config(kafka.Config{Dial: process.dial}), func(msg *message.Message, publisher message.Publisher) error {
		if err := c.copy(msg, publisher); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if !tried[string(msg.Payload)] {
			tried[string(msg.Payload)] = true
			transport.DeliveryFrom(msg.Context()).RetryAfter(time.Millisecond)
			return errors.New("later")
		}
		return nil
	})
	c.await(t)
	p.stop(t)
	c.exactlyOnce(t)
	require.Equal(t, 1, process.count(kmsg.InitProducerID))
}

// A message of no consumed one, or of another transport's, is refused, and the error tells what to do.
func TestPublishOutsideOfUnits(t *testing.T) {
	t.Parallel()
	c := hundreds(t)
	tr := connect(t, c.config(kafka.Config{}))
	publisher, err := tr.Publisher()
	require.NoError(t, err)
	msg := newMessage("k", "v")
	err = publisher.Publish(c.out, msg)
	require.ErrorIs(t, err, transport.ErrNoUnit)
	require.ErrorContains(t, err, "PlainPublisher")
	msg.SetContext(transport.WithUnit(context.Background(), elsewhere{}))
	err = publisher.Publish(c.out, msg)
	require.ErrorIs(t, err, transport.ErrForeignUnit)
	require.ErrorContains(t, err, "elsewhere")

	plain, err := tr.PlainPublisher()
	require.NoError(t, err)
	require.NoError(t, plain.Publish(c.out, msg))

	// Another transport's unit, and one that has ended.
	other := connect(t, c.config(kafka.Config{}))
	foreign, err := other.Publisher()
	require.NoError(t, err)
	subscriber, err := tr.Subscriber(transport.SubscriberConfig{Consumer: c.consumer})
	require.NoError(t, err)
	messages, err := subscriber.Subscribe(t.Context(), c.in)
	require.NoError(t, err)
	consumed := <-messages
	require.ErrorIs(t, foreign.Publish(c.out, outputOf(consumed)), transport.ErrForeignUnit)
	o := outputOf(consumed)
	o.SetContext(context.WithoutCancel(o.Context()))
	in := outputOf(consumed)
	in.SetContext(pgtx.WithSQL(o.Context(), new(sql.Tx)))
	err = publisher.Publish(c.out, in)
	require.ErrorIs(t, err, transport.ErrForeignUnit)
	require.ErrorContains(t, err, "PostgreSQL")
	rollback := transport.UnitFrom(consumed.Context()).Savepoint()
	require.NoError(t, publisher.Publish(c.out, o))
	consumed.Ack()
	require.ErrorIs(t, publisher.Publish(c.out, o), transport.ErrUnitEnded)
	rollback() // of a handler that fails after its ack: what it has published belongs to the message that is done
	require.NoError(t, subscriber.Close())
	require.Len(t, c.read(t, c.out), 2)
}

type elsewhere struct{}

func (elsewhere) Domain() string                          { return "elsewhere" }
func (elsewhere) Stage(string, ...*message.Message) error { return nil }
func (elsewhere) Savepoint() func()                       { return func() {} }

// What one call publishes in the units of two messages is staged in both, or in neither: who tries again after a refusal
// does not publish a part of it twice.
func TestPublishInSeveralUnits(t *testing.T) {
	t.Parallel()
	c := newCopying(t, fake(t).ListenAddrs(), 2)
	tr := connect(t, c.config(kafka.Config{}))
	publisher, err := tr.Publisher()
	require.NoError(t, err)
	subscriber, err := tr.Subscriber(transport.SubscriberConfig{Consumer: c.consumer, Concurrency: 2})
	require.NoError(t, err)
	messages, err := subscriber.Subscribe(t.Context(), c.in)
	require.NoError(t, err)
	one, two := <-messages, <-messages
	good, bad, better := outputOf(one), outputOf(two), outputOf(two)
	bad.Payload = make([]byte, 2<<20)
	for range 20 {
		require.ErrorIs(t, publisher.Publish(c.out, good, bad), transport.ErrLimit)
	}
	require.NoError(t, publisher.Publish(c.out, good, better))
	one.Ack()
	two.Ack()
	c.await(t)
	require.NoError(t, tr.Close())
	require.Equal(t, report{read: 2}, c.report(t))
}
