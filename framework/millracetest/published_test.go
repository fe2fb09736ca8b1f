package millracetest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/framework/millracetest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

func TestPublished(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
	require.NoError(t, err)
	publish := func(ctx context.Context, id string, delay time.Duration) {
		msg, err := Completed.Message(ctx, id, LabourCompleted{LabourID: id})
		require.NoError(t, err)
		outbox.SetDeliverAfter(msg, delay)
		require.NoError(t, events.Publish(Completed.Name(), msg))
	}
	in := func(fn func(ctx context.Context, tx pgx.Tx) error) error { return pgtx.Run(t.Context(), pool, fn) }
	require.NoError(t, in(func(ctx context.Context, tx pgx.Tx) error {
		millracetest.Published(t, tx, Completed)
		publish(ctx, "1", 0)
		return nil
	}))
	oops := errors.New("oops")
	require.NoError(t, in(func(ctx context.Context, tx pgx.Tx) error {
		publish(ctx, "2", 0)
		publish(ctx, "3", time.Hour)
		require.ErrorIs(t, in2(ctx, pool, func(ctx context.Context, _ pgx.Tx) error { publish(ctx, "undone", 0); return oops }), oops)
		require.NoError(t, in2(ctx, pool, func(ctx context.Context, _ pgx.Tx) error { publish(ctx, "4", 0); return nil }))
		found := millracetest.Published(t, tx, Completed, LabourCompleted{"4"}, LabourCompleted{"2"}, LabourCompleted{"3"}) // not 1, of an earlier transaction
		keys := map[string]bool{}
		for _, msg := range found {
			keys[transport.Key(msg)] = true
		}
		require.Equal(t, map[string]bool{"2": true, "3": true, "4": true}, keys)
		millracetest.Published(t, tx, Told)

		f := &failing{TB: t}
		millracetest.Published(f, tx, Completed, LabourCompleted{"2"})
		require.Contains(t, f.text, `want {"LabourID":"2"}`)
		require.Contains(t, f.text, `{"LabourID":"2"}, {"LabourID":"3"}, {"LabourID":"4"}`)
		return nil
	}))
}

// in2 is a nested transaction.
func in2(ctx context.Context, db pgtx.DB, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return pgtx.Run(ctx, db, fn)
}
