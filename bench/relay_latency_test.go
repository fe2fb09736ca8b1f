package main

import (
	"context"
	"io"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
)

func noted(at map[string]int64, order ...string) *times {
	t := newTimes()
	for _, id := range order {
		t.note(id, at[id])
	}
	return t
}

// The first events are left out, the order of publishing does not matter, and one that is missing is an error.
func TestBetween(t *testing.T) {
	t.Parallel()
	const ms = int64(time.Millisecond)
	committed := noted(map[string]int64{"warm": 0, "a": 10 * ms, "b": 20 * ms, "c": 30 * ms}, "warm", "a", "b", "c")
	published := noted(map[string]int64{"warm": 500 * ms, "c": 31 * ms, "a": 13 * ms, "b": 19 * ms}, "probe", "c", "warm", "a", "b")
	took, err := between(committed, published, 1)
	require.NoError(t, err)
	assert.Equal(t, []float64{-1, 1, 3}, took)

	_, err = between(committed, noted(nil, "a", "b"), 1)
	assert.ErrorContains(t, err, "of 4 committed events 2 were not published")
	_, err = between(committed, published, 4)
	assert.Error(t, err, "nothing but the warm-up")
}

// An event that comes twice counts when it came first.
func TestTimesKeepTheFirst(t *testing.T) {
	t.Parallel()
	seen := newTimes()
	seen.note("a", 1)
	seen.note("a", 2)
	assert.Equal(t, 1, seen.count())
	assert.Equal(t, int64(1), seen.byID["a"])
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	assert.Equal(t, 99.0, percentile(hundred, 0.99))
	assert.Equal(t, 50.0, percentile(hundred, 0.50))
	assert.Equal(t, 100.0, percentile(hundred, 1))
	assert.Equal(t, 7.0, percentile([]float64{7}, 0.99))
}

// A producer whose events no relay publishes gets no figure, and one that fails says why.
func TestProduceElsewhere(t *testing.T) {
	t.Parallel()
	dsn := devtest.Start(t, devstack.Postgres).PostgresDSN()
	require.NoError(t, withSchema(t.Context(), dsn, func(pool *pgxpool.Pool, schema string) error {
		err := produceElsewhere(t.Context(), dsn, schema, 50*time.Millisecond, newTimes())
		require.ErrorContains(t, err, "orders")

		require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
		require.NoError(t, orders{schema}.create(t.Context(), pool))
		committed := newTimes()
		require.NoError(t, produceElsewhere(t.Context(), dsn, schema, 100*time.Millisecond, committed))
		assert.Equal(t, pacePerSecond/10, committed.count())
		left, err := millrace{}.left(t.Context(), pool, schema)
		assert.Equal(t, pacePerSecond/10, left)
		_, missing := between(committed, newTimes(), 0)
		require.ErrorContains(t, missing, "50 were not published")
		return err
	}))
}

// The producer's process ends with the one that started it.
func TestElsewhereEndsWithItsContext(t *testing.T) {
	dsn := devtest.Start(t, devstack.Postgres).PostgresDSN()
	t.Setenv(elsewhereDSN, dsn)
	require.NotEmpty(t, os.Getenv(elsewhereDSN))
	require.NoError(t, withSchema(t.Context(), dsn, func(pool *pgxpool.Pool, schema string) error {
		require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
		require.NoError(t, orders{schema}.create(t.Context(), pool))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		err := elsewhere(ctx, []string{"-schema", schema, "-for", "1h"}, io.Discard)
		require.ErrorIs(t, err, context.Canceled)
		return nil
	}))
}
