package outbox_test

import (
	"context"
	"fmt"
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

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
)

// publishAll commits events of one key at once.
func (f *fixture) publishAll(topic, key string, payloads ...string) {
	require.NoError(f.t, pgtx.Run(context.Background(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		msgs := make([]*message.Message, len(payloads))
		for i := range msgs {
			msgs[i] = newMessage(ctx, key, payloads[i])
		}
		return f.publisher.Publish(topic, msgs...)
	}))
}

// A foreign transaction keeps the shard scanning, so rows are read again between their publish and their delete. That
// added up until the shard stalled.
func TestLargeEventsUnderASlowWriter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.publish("warm", "up")
	tx, err := f.pool.Begin(t.Context()) // a producer that takes its time
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(t.Context(), `lock table `+f.schema+`.outbox in row exclusive mode`)
	require.NoError(t, err)
	p := &sizes{}
	f.run(f.newRelay(p, outbox.RelayConfig{}))
	big := strings.Repeat("x", 200_000)
	for n := int64(1); n < 500; n++ { // 100 MB
		f.publish("k", big)
		require.Eventually(t, func() bool { return n-p.all.Load() < 20 }, time.Minute, time.Millisecond, "it stalls")
	}
	tx.Rollback(context.Background())
	eventually(t, "all are published", func() bool { return f.rows() == 0 })
}

type countingConn struct {
	net.Conn
	n *atomic.Int64
}

func (c countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// Rows of which only the first fit into memory were taken for small ones, and read again and again.
func TestLargeEventsAreReadAboutOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	events := devtest.Storm(300, 100)
	big := strings.Repeat("x", 1<<20)
	for range events / 10 {
		f.publishAll(topic, "k", big, big, big, big, big, big, big, big, big, big)
	}
	cfg := f.pool.Config()
	var n atomic.Int64
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return countingConn{c, &n}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer pool.Close()
	p := &sizes{}
	relay, err := outbox.NewRelay(pool, p, outbox.RelayConfig{Schema: f.schema})
	require.NoError(t, err)
	defer f.run(relay)()
	require.Eventually(t, func() bool { return p.all.Load() == int64(events) }, 3*time.Minute, 20*time.Millisecond)
	t.Logf("%d MB of events, %d MB transferred", events, n.Load()>>20)
	assert.Less(t, n.Load()>>20, int64(3*events))
}

// The payloads of a topic that does not get on filled the shard's memory, and the other topics stood still.
func TestSlowTopicWithLargeEvents(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	require.NoError(t, outboxadmin.ChangeShards(t.Context(), f.pool, f.schema, 1, nil))
	p := &slow{batchRecorder: batchRecorder{broker}, release: make(chan struct{})}
	pad := strings.Repeat("x", 40_000)
	for i := range 8 {
		f.publishMany("slow", 500, func(j int) string { return fmt.Sprint(i*500+j, pad) })
	}
	f.publishMany(topic, 10, func(i int) string { return "fast " + strconv.Itoa(i) })
	f.run(f.newRelay(p, outbox.RelayConfig{DrainTimeout: time.Second}))
	defer close(p.release)
	require.Eventually(t, func() bool { return broker.count() == 10 }, time.Minute, 10*time.Millisecond)
}

// slowConn is a connection through a network that carries so many bytes a second.
type slowConn struct {
	net.Conn
	perSecond int
}

func (c slowConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	<-time.After(time.Duration(n) * time.Second / time.Duration(c.perSecond))
	return n, err
}

// Events of 500 bytes taught the relay to read a thousand at once. As many of 2 MB took longer than the statements of its role
// may take, and no event was read any more.
func TestLargeAfterSmallEvents(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	f := newFixture(t)
	require.NoError(t, outboxadmin.ChangeShards(t.Context(), f.pool, f.schema, 1, nil))
	const small, large = 5000, 100
	write := func(n int, payload string) {
		_, err := f.pool.Exec(t.Context(), `insert into `+f.schema+`.outbox (shard, seq, event_id, topic, key, headers, payload)
			select 0, `+f.schema+`.outbox_next(0::smallint), gen_random_uuid()::text, $1, 'k', '{}', convert_to($3, 'UTF8') from generate_series(1, $2::int)`,
			topic, n, payload)
		require.NoError(t, err)
	}
	pool := devtest.PoolOn(t, f.pool.Config().ConnString(), func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["statement_timeout"] = "2s"
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			return slowConn{conn, 50 << 20}, err
		}
	})
	p := &sizes{}
	relay, err := outbox.NewRelay(pool, p, outbox.RelayConfig{Schema: f.schema})
	require.NoError(t, err)
	f.run(relay)
	write(small, strings.Repeat("x", 500))
	eventually(t, "the small events are published", func() bool { return p.all.Load() == small })
	write(large, strings.Repeat("x", 2<<20))
	rows, err := pool.Query(t.Context(), `select payload from `+f.schema+`.outbox order by seq limit 1000`)
	require.NoError(t, err)
	rows.Close()
	require.ErrorContains(t, rows.Err(), "statement timeout", "one statement cannot read them all")
	require.Eventually(t, func() bool { return p.all.Load() >= small+large && f.rows() == 0 }, 2*time.Minute, 20*time.Millisecond)
	assert.EqualValues(t, small+large, p.all.Load(), "each once")
}
