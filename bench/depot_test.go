package main

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// The kept tables are what the contestants write, in the same order, and a copy is drained like the original.
func TestDepot(t *testing.T) {
	t.Parallel()
	dsn := devtest.Start(t, devstack.Postgres).PostgresDSN()
	for _, d := range []drainer{millrace{}, skipLocked{}, oagudo{}, watermillSQL{batch: 1000}} {
		t.Run(d.name(), func(t *testing.T) {
			t.Parallel()
			events := newBacklog(1200)
			require.NoError(t, withSchema(t.Context(), dsn, func(pool *pgxpool.Pool, schema string) error {
				kept := &depot{prefix: schema}
				require.NoError(t, kept.keep(d, events)(t.Context(), pool))
				_, err := trial{drainer: d, events: events, from: kept}.run(t.Context(), dsn)
				require.NoError(t, err)

				require.NoError(t, d.create(t.Context(), pool, schema))
				done, err := kept.copyTo(t.Context(), pool, d, schema, events)
				require.NoError(t, err)
				require.True(t, done)
				var same bool
				require.NoError(t, pool.QueryRow(t.Context(), `select
					(select array_agg(a order by ctid) from `+d.table(schema)+` a)::text =
					(select array_agg(b order by ctid) from `+d.table(schema+"_0")+` b)::text`).Scan(&same))
				assert.True(t, same)

				done, err = kept.copyTo(t.Context(), pool, d, schema, newBacklog(1200))
				assert.False(t, done, "other events")
				return errors.Join(err, kept.drop(t.Context(), pool))
			}))
		})
	}
}
