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
	"github.com/millrace-go/millrace/outbox"
)

// silent commits the business row and no event, though one is expected.
type silent struct{ plain }

func (silent) table(schema string) string { return millrace{}.table(schema) }

// lazy does nothing.
type lazy struct{ plain }

func (lazy) commit(context.Context, int, event) error { return nil }

// A producer that does half the work gets no figure.
func TestHalfATransactionIsAnError(t *testing.T) {
	t.Parallel()
	dsn := devtest.Start(t, devstack.Postgres).PostgresDSN()
	require.NoError(t, withSchema(t.Context(), dsn, func(pool *pgxpool.Pool, schema string) error {
		business := orders{schema}
		require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
		require.NoError(t, business.create(t.Context(), pool))
		publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
		require.NoError(t, err)
		measure := func(p producer, drained func() int) (float64, error) {
			return turn(t.Context(), pool, p, schema, 10*time.Millisecond, drained)
		}
		whole := plain{pool, business, "plain"}
		_, err = measure(silent{whole}, none)
		require.ErrorContains(t, err, "business rows and 0 events")
		_, err = measure(lazy{whole}, none)
		require.ErrorContains(t, err, "commits made 0 business rows")

		for _, p := range []producer{whole, withOutbox{pool, business, publisher, "with_outbox"}} {
			rate, err := measure(p, none)
			require.NoError(t, err)
			assert.Positive(t, rate)
		}
		return nil
	}))
}
