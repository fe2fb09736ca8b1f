package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
)

// refused reports whether a producer met a change of shards.
func refused(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "55006"
}

// own publishes in a transaction that the caller began.
func (f *fixture) own(ctx context.Context, tx pgx.Tx, key, payload string) error {
	err := f.publisher.Publish(topic, newMessage(pgtx.With(ctx, tx), key, payload))
	if err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	return tx.Commit(ctx)
}

func (f *fixture) shards() int {
	n, err := outboxadmin.Shards(f.t.Context(), f.pool, f.schema)
	require.NoError(f.t, err)
	return n
}

// The number of shards goes up and down while producers and two relays run. Every committed event is published, those of a
// key in their order; producers of every kind come through again, also those whose snapshot is older than the change.
func TestShardsChangeUnderLoad(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	for range 2 {
		f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{}))
	}
	var stop atomic.Bool
	var writing sync.WaitGroup
	var committed, refusals atomic.Int64
	for w := range 4 {
		writing.Go(func() {
			key := "key " + strconv.Itoa(w)
			for n := 0; !stop.Load(); {
				var err error
				ctx, payload := context.Background(), fmt.Sprintf("%06d", n)
				if w%2 == 0 {
					err = pgtx.Run(ctx, f.pool, func(ctx context.Context, _ pgx.Tx) error {
						return f.publisher.Publish(topic, newMessage(ctx, key, payload))
					})
				} else {
					var tx pgx.Tx
					if tx, err = f.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}); err == nil {
						err = f.own(ctx, tx, key, payload)
					}
				}
				switch {
				case refused(err):
					refusals.Add(1)
				case !assert.NoError(t, err):
					return
				default:
					committed.Add(1)
					n++
				}
			}
		})
	}
	for _, n := range []int{40, 3, 16} {
		old, err := f.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		require.NoError(t, err)
		_, err = old.Exec(t.Context(), `select count(*) from pg_class`) // its snapshot is taken
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		var steps []string
		require.NoError(t, outboxadmin.ChangeShards(ctx, f.pool, f.schema, n, func(text string) { steps = append(steps, text) }), steps)
		cancel()
		assert.Contains(t, strings.Join(steps, "\n"), "waiting for relays to publish")
		assert.Equal(t, n, f.shards())
		require.NoError(t, f.own(t.Context(), old, "old snapshot", "before "+strconv.Itoa(n)))
		committed.Add(1)
		before := committed.Load()
		eventually(t, "producers go on", func() bool { return committed.Load() > before+20 })
	}
	stop.Store(true)
	writing.Wait()
	eventually(t, "all is published", func() bool { return int64(broker.count()) >= committed.Load() && f.rows() == 0 })
	assert.EqualValues(t, committed.Load(), broker.count())
	assert.Positive(t, refusals.Load())
	assert.Equal(t, []string{"before 40", "before 3", "before 16"}, broker.of("old snapshot"))
	for w := range 4 {
		assert.IsIncreasing(t, broker.of("key "+strconv.Itoa(w)))
	}
	findings, err := outboxadmin.Check(t.Context(), f.pool, f.schema, false)
	require.NoError(t, err)
	assert.Empty(t, findings)
	var language string
	require.NoError(t, f.pool.QueryRow(t.Context(), `select lanname from pg_proc p join pg_language l on l.oid = p.prolang
		where p.oid = $1::regprocedure`, f.schema+".outbox_next(smallint)").Scan(&language))
	assert.Equal(t, "sql", language, "the function that PostgreSQL inlines")
}

// Failed events move to the shard that their key has now, and their key goes on waiting for them.
func TestShardsChangeWithFailedEvents(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	broker.refuseAll(func(p string) bool { return strings.HasPrefix(p, "poison") })
	f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{MaxAttempts: 1}))
	stopFlow := f.flow()
	const keys = 20
	for i := range keys {
		f.publish("key "+strconv.Itoa(i), "poison")
	}
	dead := func() (n int) {
		require.NoError(t, f.pool.QueryRow(context.Background(), `select count(*) from `+f.schema+`.outbox_failed where state = 'dead'`).Scan(&n))
		return n
	}
	eventually(t, "all are dead", func() bool { return dead() == keys })
	stopFlow()
	require.NoError(t, outboxadmin.ChangeShards(t.Context(), f.pool, f.schema, 5, nil))
	for i := range keys {
		f.publish("key "+strconv.Itoa(i), "after")
	}
	eventually(t, "the later ones queue", func() bool { return f.rows() == 2*keys })
	broker.refuseAll(nil)
	n, err := outboxadmin.Retry(t.Context(), f.pool, f.schema, outboxadmin.Selection{}, outboxadmin.By{Actor: "a test"})
	require.NoError(t, err)
	assert.EqualValues(t, keys, n)
	eventually(t, "they are published", func() bool { return f.rows() == 0 })
	for i := range keys {
		assert.Equal(t, []string{"poison", "after"}, broker.of("key "+strconv.Itoa(i)))
	}
}

// The failed events may be so many that moving them to their new shards outlasts the fence. Its locks keep producers out then.
func TestShardsChangeSlowly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, sql := range []string{
		`create function {schema}.slowly() returns trigger language plpgsql as 'begin perform pg_sleep(6); return null; end'`,
		`create trigger slowly before update on {schema}.outbox_failed for each statement execute function {schema}.slowly()`,
	} {
		_, err := f.pool.Exec(t.Context(), pgschema.Render(sql, f.schema))
		require.NoError(t, err)
	}
	require.NoError(t, outboxadmin.ChangeShards(t.Context(), f.pool, f.schema, 5, nil))
	assert.Equal(t, 5, f.shards())
	f.publish("key", "1")
}

// Without a relay nothing changes, and producers go on at once.
func TestShardsStayWithoutARelay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.ErrorContains(t, outboxadmin.ChangeShards(t.Context(), f.pool, f.schema, 257, nil), "want 1 to 256")
	f.publish("key", "1")
	ctx, cancel := context.WithCancel(t.Context())
	err := outboxadmin.ChangeShards(ctx, f.pool, f.schema, 4, func(text string) {
		if !strings.HasPrefix(text, "waiting for relays to publish 1 ") {
			return
		}
		tx, err := f.pool.Begin(t.Context())
		require.NoError(t, err)
		err = f.own(t.Context(), tx, "key", "refused")
		assert.True(t, refused(err), "%v", err)
		assert.ErrorContains(t, err, "the number of shards of the outbox is being changed")
		assert.ErrorIs(t, outboxadmin.ChangeShards(t.Context(), f.pool, f.schema, 5, nil), outboxadmin.ErrShardsChanging)
		cancel()
	})
	require.ErrorContains(t, err, "1 events are still in the outbox; is a relay running?: the number stays 16")
	f.publish("key", "2")
	assert.Equal(t, 2, f.rows())
	assert.Equal(t, 16, f.shards())
}

// Once the number has changed, nothing lets producers on before each relay has renewed its lease twice, and so has learned of it.
func TestShardsChangeIsNotInterruptedAtItsEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	exec := func(sql string) {
		_, err := f.pool.Exec(context.Background(), pgschema.Render(sql, f.schema))
		assert.NoError(t, err)
	}
	exec(`insert into {schema}.outbox_relay (relay_id, expires_at) values (gen_random_uuid(), now() + interval '1 hour')`)
	ctx, cancel := context.WithCancel(t.Context())
	var renewed atomic.Int64
	var renewing sync.WaitGroup
	defer renewing.Wait()
	over := make(chan struct{})
	defer close(over)
	require.NoError(t, outboxadmin.ChangeShards(ctx, f.pool, f.schema, 4, func(text string) {
		if !strings.HasPrefix(text, "there are 4 shards") {
			return
		}
		cancel()
		renewing.Go(func() {
			for tick := time.Tick(100 * time.Millisecond); ; {
				select {
				case <-over:
					return
				case <-tick:
					exec(`update {schema}.outbox_relay set expires_at = expires_at + interval '1 second'`)
					renewed.Add(1)
				}
			}
		})
	}))
	assert.GreaterOrEqual(t, renewed.Load(), int64(2))
	assert.Equal(t, 4, f.shards())
	f.publish("key", "1")
}

// A transaction that published before producers were refused ends as it likes, and its events are drained.
func TestShardsWaitForOpenTransactions(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{}))
	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, f.publisher.Publish(topic, newMessage(pgtx.With(t.Context(), tx), "key", "open")))
	waited := false
	require.NoError(t, outboxadmin.ChangeShards(t.Context(), f.pool, f.schema, 8, func(text string) {
		if text == "waiting for transactions that have published to end" && !waited {
			waited = true
			require.NoError(t, tx.Commit(t.Context()))
		}
	}))
	assert.True(t, waited)
	f.publish("key", "later")
	eventually(t, "both are published, in order", func() bool { return len(broker.of("key")) == 2 })
	assert.Equal(t, []string{"open", "later"}, broker.of("key"))
}
