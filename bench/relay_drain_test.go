package main

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// Each contestant does the whole work, and so does the check that every timed run makes of it.
func TestEachContestantPublishesEveryEventOnce(t *testing.T) {
	t.Parallel()
	dsn := devtest.Start(t, devstack.Postgres).PostgresDSN()
	for _, d := range []drainer{millrace{}, skipLocked{}, singleSelect{}} {
		t.Run(d.name(), func(t *testing.T) {
			t.Parallel()
			events := newBacklog(2345) // no multiple of a batch
			require.NoError(t, withSchema(t.Context(), dsn, func(pool *pgxpool.Pool, schema string) error {
				require.NoError(t, d.create(t.Context(), pool, schema))
				require.NoError(t, d.write(t.Context(), pool, schema, events))
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				to := newSink(len(events), cancel)
				require.NoError(t, d.drain(ctx, pool, schema, to))
				require.NotErrorIs(t, ctx.Err(), context.DeadlineExceeded)

				var want []string
				for _, e := range events {
					want = append(want, e.id)
				}
				assert.ElementsMatch(t, want, to.ids)
				left, err := d.left(t.Context(), pool, schema)
				assert.Zero(t, left)
				return err
			}))
		})
	}
}

// forgetful publishes everything and records nothing.
type forgetful struct{ millrace }

func (f forgetful) drain(ctx context.Context, pool *pgxpool.Pool, schema string, to *sink) error {
	return singleSelect(f).drain(ctx, pool, schema, to)
}

// hasty records everything and publishes nothing.
type hasty struct{ millrace }

func (h hasty) drain(ctx context.Context, pool *pgxpool.Pool, schema string, _ *sink) error {
	_, err := pool.Exec(ctx, `delete from `+h.table(schema))
	return err
}

// A contestant that does half the work gets no figure.
func TestHalfTheWorkIsAnError(t *testing.T) {
	t.Parallel()
	dsn := devtest.Start(t, devstack.Postgres).PostgresDSN()
	_, err := drainOnce(t.Context(), dsn, forgetful{}, newBacklog(1500))
	require.ErrorContains(t, err, "1500 published events are not recorded")
	_, err = drainOnce(t.Context(), dsn, hasty{}, newBacklog(1500))
	require.ErrorContains(t, err, "published 0 events")
}

func TestSinkCheck(t *testing.T) {
	t.Parallel()
	events := []event{{id: "a"}, {id: "b"}}
	for name, test := range map[string]struct {
		ids []string
		ok  bool
	}{
		"each once":     {[]string{"b", "a"}, true},
		"one missing":   {[]string{"a"}, false},
		"one twice":     {[]string{"a", "a"}, false},
		"one too often": {[]string{"a", "b", "b"}, false},
		"a foreign one": {[]string{"a", "c"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, test.ok, (&sink{ids: test.ids}).check(events) == nil)
		})
	}
}
