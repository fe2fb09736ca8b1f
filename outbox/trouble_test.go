package outbox_test

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// frozen is a connection that its process stops to read from, as one does that was stopped by SIGSTOP.
type frozen struct {
	net.Conn
	stopped *atomic.Bool
	end     <-chan struct{}
}

func (c frozen) Read(b []byte) (int, error) {
	if c.stopped.Load() {
		<-c.end
	}
	return c.Conn.Read(b)
}

// A relay that stopped while the server was sending it rows held the locks of its delete in the same transaction, and
// the next holder of the shard waited for them as long as the connection lived.
func TestStoppedRelayHoldsNothingUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const events = 600
	require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		msgs := make([]*message.Message, events)
		for i := range msgs {
			msgs[i] = newMessage(ctx, "k", strconv.Itoa(i)+strings.Repeat(" ", 20_000))
		}
		return f.publisher.Publish(topic, msgs...)
	}))
	var stopped atomic.Bool
	end := make(chan struct{})
	cfg := f.pool.Config()
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return frozen{conn, &stopped, end}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer pool.Close()
	first := newRecorder()
	relay, err := outbox.NewRelay(pool, stopping{batchRecorder{first}, &stopped}, outbox.RelayConfig{
		Schema: f.schema, LeaseTTL: 2 * time.Second, BatchSize: 200, DrainTimeout: time.Second,
	})
	require.NoError(t, err)
	defer f.run(relay)()
	defer close(end)
	eventually(t, "the first relay is stopped after a batch", stopped.Load)

	second := newRecorder()
	f.run(f.newRelay(batchRecorder{second}, outbox.RelayConfig{}))
	eventually(t, "the second one publishes the rest", func() bool { return f.rows() == 0 })
	assert.GreaterOrEqual(t, first.count()+second.count(), events)
}

// stopping stops its process once a batch was published.
type stopping struct {
	batchRecorder
	stopped *atomic.Bool
}

func (p stopping) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	defer p.stopped.Store(true)
	return p.batchRecorder.PublishBatch(ctx, topic, msgs)
}

// Every event of one topic fails, many of them; the others of the shard go on.
func TestFailingTopicDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	require.NoError(t, outboxadmin.ChangeShards(t.Context(), f.pool, f.schema, 4, nil))
	broker.refuseAll(func(p string) bool { return p == "bad" })
	publish := func(n int, payload string, key func(i int) string) {
		require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
			msgs := make([]*message.Message, n)
			for i := range msgs {
				msgs[i] = newMessage(ctx, key(i), payload)
			}
			return f.publisher.Publish(topic, msgs...)
		}))
	}
	publish(10_000, "bad", strconv.Itoa) // 2,500 in each shard
	publish(40, "good", func(i int) string { return "good " + strconv.Itoa(i) })
	f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{}))
	require.Eventually(t, func() bool { return broker.count() == 40 }, time.Minute, 20*time.Millisecond)
}

// A publisher that only ever says that something earlier failed was asked thousands of times a second.
func TestNotSentIsNoHotLoop(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := &notSending{}
	f.publish("k", "1")
	f.run(f.newRelay(p, outbox.RelayConfig{}))
	eventually(t, "it is asked", func() bool { return p.calls.Load() > 2 })
	before := p.calls.Load()
	time.AfterFunc(time.Second, func() { p.done.Store(true) })
	eventually(t, "a second has gone", p.done.Load)
	assert.Less(t, p.calls.Load()-before, int64(10))
	assert.Equal(t, 1, f.rows())
}

type notSending struct {
	recorder
	calls atomic.Int64
	done  atomic.Bool
}

func (p *notSending) PublishBatch(_ context.Context, _ string, msgs []*message.Message) []error {
	p.calls.Add(1)
	errs := make([]error, len(msgs))
	for i := range errs {
		errs[i] = transport.ErrNotSent
	}
	return errs
}

// A publisher that blocks for ever takes no context, so nothing can end it; Run returns all the same.
func TestRunEndsWithoutItsPublisher(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	broker.hold = make(chan struct{})
	defer close(broker.hold)
	f.publish("k", "1")
	stop := f.run(f.newRelay(broker, outbox.RelayConfig{DrainTimeout: 100 * time.Millisecond}))
	<-broker.waiting
	began := time.Now()
	stop()
	assert.Less(t, time.Since(began), 30*time.Second)
	assert.Equal(t, 1, f.rows())
}

// A batch is bounded by bytes as well: 100 events of 1 MB are never in memory at once.
func TestBatchesAreBoundedByBytes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	big := strings.Repeat("x", 1<<20)
	for range 10 {
		require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
			msgs := make([]*message.Message, 10)
			for i := range msgs {
				msgs[i] = newMessage(ctx, "k", big)
			}
			return f.publisher.Publish(topic, msgs...)
		}))
	}
	p := &sizes{}
	f.run(f.newRelay(p, outbox.RelayConfig{}))
	eventually(t, "all are published", func() bool { return f.rows() == 0 })
	assert.LessOrEqual(t, p.largest.Load(), int64(17))
	assert.Equal(t, int64(100), p.all.Load())
}

type sizes struct {
	recorder
	largest, all atomic.Int64
}

func (p *sizes) PublishBatch(_ context.Context, _ string, msgs []*message.Message) []error {
	n := int64(len(msgs))
	p.all.Add(n)
	p.largest.Store(max(p.largest.Load(), n))
	return make([]error, n)
}
