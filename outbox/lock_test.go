package outbox_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// slowCommits makes every commit with events take up to so many milliseconds, so that transactions overtake each other.
func (f *fixture) slowCommits(ms int) {
	_, err := f.pool.Exec(f.t.Context(), `
		create function `+f.schema+`.slow() returns trigger language plpgsql
		as 'begin perform pg_sleep(random() * `+strconv.Itoa(ms)+` / 1000.0); return null; end';
		create constraint trigger slow after insert on `+f.schema+`.outbox deferrable initially deferred
		for each row execute function `+f.schema+`.slow()`)
	require.NoError(f.t, err)
}

// Eight writers publish events of few keys, and lock no row. What a reader sees of a key must only ever grow at its end.
func TestLockKeyKeepsTheOrder(t *testing.T) {
	t.Parallel()
	for name, locked := range map[string]bool{"with locks": true, "without, to see that the test can fail": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newCluster(t, devtest.PoolOn(t, devtest.Database(t)), "locked") // groups of other tests see the deferrable constraints of theirs
			f.slowCommits(10)
			const writers, each = 8, 15
			keys := []string{"a", "b"}
			var (
				writing  sync.WaitGroup
				written  = make(chan struct{})
				inverted atomic.Int64
				deadline = time.Now().Add(time.Minute)
			)
			for range writers {
				writing.Go(func() {
					for i := 0; i < each || !locked && inverted.Load() == 0 && time.Now().Before(deadline); i++ {
						assert.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
							first := rand.IntN(2)
							for _, k := range []string{keys[first], keys[1-first]} { // in any order
								if err := f.publisher.Publish(topic, newMessage(ctx, k, "p")); err != nil {
									return err
								}
								if locked {
									if err := f.publisher.LockKey(ctx, k); err != nil {
										return err
									}
								}
							}
							return nil
						}))
					}
				})
			}
			go func() { writing.Wait(); close(written) }()
			for seen, done := map[string]int64{}, false; !done; {
				select {
				case <-written:
					done = true // after one more look
				default:
				}
				rows, err := f.pool.Query(t.Context(), `select key, array_agg(seq order by seq) from `+f.schema+`.outbox group by key`)
				require.NoError(t, err)
				var key string
				var seqs []int64
				_, err = pgx.ForEachRow(rows, []any{&key, &seqs}, func() error {
					n := int(seen[key+" count"])
					if n > 0 && seqs[n-1] != seen[key] {
						inverted.Add(1)
					}
					seen[key], seen[key+" count"] = seqs[len(seqs)-1], int64(len(seqs))
					return nil
				})
				require.NoError(t, err)
			}
			if locked {
				assert.Zero(t, inverted.Load())
				assert.Equal(t, 2*writers*each, f.rows())
			} else {
				assert.Positive(t, inverted.Load())
			}
		})
	}
}

// In a transaction of the caller's own the lock is there when LockKey returns, whatever the driver.
func TestLockKeyAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	db := stdlib.OpenDBFromPool(f.pool)
	defer db.Close()
	std, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	own, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, f.publisher.LockKey(pgtx.WithSQL(t.Context(), std), "b", "a", "b"))
	require.NoError(t, f.publisher.LockKey(pgtx.With(t.Context(), own), "c"))
	held := func() (n int) {
		require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*) from pg_locks
			where locktype = 'advisory' and granted and pid = any($1)`,
			[]int{f.backend(own.QueryRow), f.backend(func(ctx context.Context, sql string, args ...any) pgx.Row {
				return std.QueryRowContext(ctx, sql, args...)
			})}).Scan(&n))
		return n
	}
	assert.Equal(t, 3, held())
	require.NoError(t, std.Rollback())
	require.NoError(t, own.Rollback(t.Context()))
}

func (f *fixture) backend(row func(ctx context.Context, sql string, args ...any) pgx.Row) (pid int) {
	require.NoError(f.t, row(f.t.Context(), `select pg_backend_pid()`).Scan(&pid))
	return pid
}

func TestLockKeyCostsNoRoundTrip(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pool, counter := devtest.CountedPool(t)
	assert.Equal(t, 1, counter.Of(func() {
		require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
			require.NoError(t, f.publisher.LockKey(ctx))
			require.NoError(t, f.publisher.LockKey(ctx, "a", "b"))
			require.NoError(t, outbox.LockKey(ctx, "a"))
			return f.publisher.Publish(topic, newMessage(ctx, "a", "p"))
		}))
	}))
}

func TestLockKeyOutsideATransaction(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, outbox.LockKey(t.Context(), "k"), outbox.ErrNoTransaction)
	require.NoError(t, outbox.LockKey(t.Context()))
}
