package main

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// An event without effect, with two, or left in the outbox fails the run.
func TestEndToEndIsChecked(t *testing.T) {
	t.Parallel()
	dsn := devtest.Start(t, devstack.Postgres).PostgresDSN()
	run := func(change func(w *way)) (err error) {
		require.NoError(t, withSchema(t.Context(), dsn, func(pool *pgxpool.Pool, schema string) error {
			r, openErr := openFake(t.Context())
			require.NoError(t, openErr)
			defer func() { require.NoError(t, r.close()) }()
			w, createErr := newWay(t.Context(), pool, schema, r)
			require.NoError(t, createErr)
			w.grace = 200 * time.Millisecond
			change(w)
			require.NoError(t, w.start(t.Context(), dsn, false))
			err = errors.Join(w.offer(t.Context(), 100, 100*time.Millisecond), w.stop(), w.check(t.Context()))
			return nil
		}))
		return err
	}
	require.NoError(t, run(func(*way) {}))
	require.ErrorContains(t, run(func(w *way) {
		w.handler = func(*message.Message) error { return nil }
	}), "60 events had 0 effects")
	require.ErrorContains(t, run(func(w *way) {
		honest := w.handler
		w.handler = func(msg *message.Message) error { return errors.Join(honest(msg), honest(msg)) }
	}), "60 events had 120 effects, of 60 events")
	require.ErrorContains(t, run(func(w *way) {
		honest, calls := w.handler, new(atomic.Int64)
		w.handler = func(msg *message.Message) error {
			if calls.Add(1) > 50 { // the events that are not measured
				return errors.New("out of order")
			}
			return honest(msg)
		}
	}), "a backlog is left 200ms after the last commit: 0 rows in the outbox, 10 of 60 events without effect")
}
