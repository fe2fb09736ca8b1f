package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// delayed counts what waits.
func (f *fixture) delayed() (n int) {
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), `select count(*) from `+f.schema+`.outbox_delayed`).Scan(&n))
	return n
}

func later(ctx context.Context, key, payload string, d time.Duration) *message.Message {
	msg := newMessage(ctx, key, payload)
	outbox.SetDeliverAfter(msg, d)
	return msg
}

// Delayed events and others are one statement, and nothing of the delay but the time remains in the metadata.
func TestDelayedEventsWaitApart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pool, counter := devtest.CountedPool(t)
	publish := func(ctx context.Context) error {
		return f.publisher.Publish(topic, newMessage(ctx, "k", "now 1"), later(ctx, "k", "later", time.Hour), newMessage(ctx, "k", "now 2"))
	}
	assert.Equal(t, 1, counter.Of(func() {
		require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error { return publish(ctx) }))
	}))
	db := stdlib.OpenDBFromPool(f.pool)
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, publish(pgtx.WithSQL(t.Context(), tx)))
	require.NoError(t, tx.Commit())

	assert.Equal(t, []string{"now 1", "now 2", "now 1", "now 2", "now 1", "now 2"}, f.payloads("k"))
	assert.Equal(t, 3, f.delayed())
	var headers string
	var wait time.Duration
	require.NoError(t, f.pool.QueryRow(t.Context(), `select distinct on (headers) convert_from(headers, 'UTF8'), due_at - clock_timestamp()
		from `+f.schema+`.outbox_delayed`).Scan(&headers, &wait))
	assert.Equal(t, `{}`, headers)
	assert.InDelta(t, time.Hour.Minutes(), wait.Minutes(), 5)
}

func TestDelayIsChecked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		for d, ok := range map[time.Duration]bool{
			-1: false, -time.Hour: false, outbox.MaxDelay + 1: false, outbox.MaxDelay: true, 1: true, 0: true,
		} {
			err := f.publisher.Publish(topic, later(ctx, "k", "p", d))
			if ok {
				require.NoError(t, err, d)
				continue
			}
			require.ErrorIs(t, err, outbox.ErrInvalidMessage)
			require.ErrorContains(t, err, "the delay is "+d.String()+": want 0 to 87600h0m0s")
		}
		return nil
	}))
	assert.Equal(t, 1, f.rows())
	assert.Equal(t, 2, f.delayed())

	msg := &message.Message{}
	outbox.SetDeliverAfter(msg, time.Hour)
	assert.Len(t, msg.Metadata, 1)
	outbox.SetDeliverAfter(msg, 0)
	assert.Empty(t, msg.Metadata, "zero takes it back")
}

func TestCancel(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var kept, cancelled string
	require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		one, two, three := later(ctx, "k", "kept", time.Hour), later(ctx, "k", "cancelled", time.Hour), later(ctx, "k", "at once", time.Hour)
		kept, cancelled = one.UUID, two.UUID
		require.NoError(t, f.publisher.Publish(topic, one, two, three))
		ok, err := f.publisher.Cancel(ctx, three.UUID)
		assert.True(t, ok, "of the same transaction")
		return err
	}))
	assert.Equal(t, 2, f.delayed())

	require.ErrorIs(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		ok, err := f.publisher.Cancel(ctx, kept)
		require.NoError(t, err)
		assert.True(t, ok)
		return errOops
	}), errOops)
	assert.Equal(t, 2, f.delayed(), "rolled back")

	db := stdlib.OpenDBFromPool(f.pool)
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	for _, want := range []bool{true, false} {
		ok, err := f.publisher.Cancel(pgtx.WithSQL(t.Context(), tx), cancelled)
		require.NoError(t, err)
		assert.Equal(t, want, ok)
	}
	require.NoError(t, tx.Commit())
	assert.Equal(t, 1, f.delayed())

	_, err = f.publisher.Cancel(t.Context(), kept)
	require.ErrorIs(t, err, outbox.ErrNoTransaction)
}

// The due time that the relay will add counts for the limits, and the delay itself does not.
func TestDelayAndLimits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: f.schema, Limits: transport.Limits{MetadataEntries: 1}})
	require.NoError(t, err)
	require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		msg := later(ctx, "k", "p", time.Hour)
		require.NoError(t, p.Publish(topic, msg))
		msg.Metadata["own"] = ""
		require.ErrorContains(t, p.Publish(topic, msg), "number of metadata entries is 2, the limit is 1")
		return nil
	}))
}
