package outbox_test

import (
	"context"
	"strconv"
	"sync"
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

// withBacklog returns a publisher that has not looked yet.
func (f *fixture) withBacklog(limit int) *outbox.Publisher {
	p, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: f.schema, MaxBacklog: limit})
	require.NoError(f.t, err)
	return p
}

func TestMaxBacklog(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for i := range 10 {
		f.publish(strconv.Itoa(i), "p")
	}
	require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
		full := f.withBacklog(10)
		for range 2 { // looked up, and remembered
			err := full.Publish(topic, newMessage(ctx, "k", "refused"))
			require.ErrorIs(t, err, outbox.ErrBacklog)
			require.ErrorContains(t, err, "about 10, PublisherConfig.MaxBacklog is 10: see that a relay runs")
		}
		return f.withBacklog(11).Publish(topic, newMessage(ctx, "k", "taken")) // the transaction goes on
	}))
	assert.Equal(t, 11, f.rows())

	db := stdlib.OpenDBFromPool(f.pool)
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	ctx := pgtx.WithSQL(t.Context(), tx)
	require.ErrorIs(t, f.withBacklog(11).Publish(topic, newMessage(ctx, "k", "refused")), outbox.ErrBacklog)
	require.NoError(t, f.withBacklog(12).Publish(topic, newMessage(ctx, "k", "taken")))
	require.NoError(t, tx.Commit())
}

// Numbers that were taken and never used are no backlog.
func TestBacklogIsCountedWhenInDoubt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.publish("k", "first")
	_, err := f.pool.Exec(t.Context(), `select `+f.schema+`.outbox_next((select shard from `+f.schema+`.outbox)) from generate_series(1, 1000)`)
	require.NoError(t, err)
	require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		return f.withBacklog(2).Publish(topic, newMessage(ctx, "k", "p"))
	}))
	assert.Equal(t, 2, f.rows())
}

// After a restore the sequence of a shard may be below its rows. Then nothing was refused.
func TestMaxBacklogWithASequenceSetBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.publishAll(topic, "k", "1", "2", "3")
	_, err := f.pool.Exec(t.Context(), `select setval(('`+f.schema+`.outbox_seq_' || shard)::regclass, 1, false) from `+f.schema+`.outbox`)
	require.NoError(t, err)
	_, err = f.pool.Exec(t.Context(), `update `+f.schema+`.outbox set seq = seq + 10`)
	require.NoError(t, err)
	require.NoError(t, f.tryPublish(f.withBacklog(4)))
	require.ErrorIs(t, f.tryPublish(f.withBacklog(3)), outbox.ErrBacklog)
}

// Eight writers fill the outbox while nobody drains it. Publishers once relied on a look for a second, whatever was published
// in it: a limit of 1,000 was passed five times over.
func TestMaxBacklogWithEightWriters(t *testing.T) {
	t.Parallel()
	const writers, limit = 8, 320
	for name, publishers := range map[string]int{"one publisher": 1, "a publisher each": writers} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			shared := make([]*outbox.Publisher, publishers)
			for i := range shared {
				shared[i] = f.withBacklog(limit)
			}
			var writing sync.WaitGroup
			for w := range writers {
				writing.Go(func() {
					for refused := 0; refused < 3; {
						err := f.tryPublish(shared[w%publishers])
						if err != nil {
							assert.ErrorIs(t, err, outbox.ErrBacklog)
							refused++
						}
					}
				})
			}
			writing.Wait()
			rows := f.rows()
			t.Logf("%d events, the limit is %d", rows, limit)
			assert.GreaterOrEqual(t, rows, limit)
			assert.LessOrEqual(t, rows, limit+(publishers-1)*limit/16+writers, "the documented bound")
		})
	}
}

// A publisher looks once a second while it has room, and sees when the backlog is gone.
func TestBacklogIsLookedUpOnceASecond(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pool, counter := devtest.CountedPool(t)
	p := f.withBacklog(1000)
	begun := time.Now()
	trips := counter.Of(func() {
		for range 20 {
			require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
				return p.Publish(topic, newMessage(ctx, "", "p"))
			}))
			_, err := pool.Exec(t.Context(), `truncate `+f.schema+`.outbox`)
			require.NoError(t, err)
		}
	})
	looks := int(time.Since(begun)/time.Second) + 1
	assert.LessOrEqual(t, trips, 40+3*looks)

	f.publishMany(topic, 1000, strconv.Itoa)
	eventually(t, "refused", func() bool { return f.tryPublish(p) != nil })
	_, err := f.pool.Exec(t.Context(), `truncate `+f.schema+`.outbox`)
	require.NoError(t, err)
	eventually(t, "taken", func() bool { return f.tryPublish(p) == nil })
}

func (f *fixture) tryPublish(p *outbox.Publisher) error {
	return pgtx.Run(f.t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		return p.Publish(topic, newMessage(ctx, "", "p"))
	})
}
