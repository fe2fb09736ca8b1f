package main

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
)

// withClaiming calls fn with a run of the scenario whose tables are there.
func withClaiming(t *testing.T, fn func(c *claiming)) {
	dsn := devtest.Start(t, devstack.Postgres).PostgresDSN()
	require.NoError(t, withSchema(t.Context(), dsn, func(pool *pgxpool.Pool, schema string) error {
		c := &claiming{
			rounds: rounds{env: &environment{dsn: dsn, progress: func(string, ...any) {}}, unit: "events/s"},
			pool:   pool, schema: schema, accounts: accounts{schema},
		}
		require.NoError(t, c.create(t.Context()))
		fn(c)
		return dropSchema(t.Context(), pool, c.grownSchema())
	}))
}

// A consumer that does half the work gets no figure.
func TestHalfAConsumerIsAnError(t *testing.T) {
	t.Parallel()
	withClaiming(t, func(c *claiming) {
		measure := func(who consumer) error {
			who.name, who.flow = "somebody", flow{inFlight: 4, events: 20}
			_, err := c.entrant(who, 0, 0).measure(t.Context())
			return err
		}
		own := claimed(c.pool, c.schema, claim.Config{})
		lazy := func(*message.Message) error { return nil }
		fails := func(*message.Message) error { return errors.New("out of order") }

		require.NoError(t, measure(consumer{guard: own, handler: c.accounts.exec, record: processed(c.schema)}))
		require.ErrorContains(t, measure(consumer{guard: own, handler: lazy}), "20 events were acked and 0 had their effect")
		require.ErrorContains(t, measure(consumer{guard: unguarded, handler: c.accounts.autocommit(c.pool), record: processed(c.schema)}),
			"20 effects left 0 records")
		require.ErrorContains(t, measure(consumer{guard: own, handler: fails}), "out of order")
		require.ErrorContains(t, measure(consumer{guard: unguarded, handler: c.accounts.exec}), errNoTransaction.Error())
	})
}

// Each contestant does what it is there for: an event that is delivered twice at once has one effect.
func TestConsumersAbsorbDuplicates(t *testing.T) {
	t.Parallel()
	withClaiming(t, func(c *claiming) {
		five, index := fiveStatements{c.pool, c.schema}, blocking{c.pool, c.schema}
		measure := func(who consumer) error {
			who.flow, who.nacks = flow{inFlight: 4, twice: true, events: 20}, true
			_, err := c.entrant(who, 0, 0).measure(t.Context())
			return err
		}
		for _, who := range []consumer{
			{name: "claim", guard: claimed(c.pool, c.schema, claim.Config{}), handler: c.accounts.queue, record: processed(c.schema)},
			{name: "group", guard: claimed(c.pool, c.schema, claim.Config{Group: 5}), handler: c.accounts.exec, record: processed(c.schema)},
			{name: "lazy", guard: claimed(c.pool, c.schema, claim.Config{Lazy: true}), handler: c.accounts.queue, record: processed(c.schema)},
			{name: "deferred", guard: claimed(c.pool, c.schema, claim.Config{Deferred: true}), handler: c.accounts.exec, record: processed(c.schema)},
			{name: "five", guard: five.guard, handler: c.accounts.exec, record: five.table()},
			{name: "blocking", guard: index.guard, handler: c.accounts.queue, record: index.table()},
			{name: "deduplicator", guard: deduplicated, handler: c.accounts.autocommit(c.pool)},
		} {
			assert.NoError(t, measure(who))
		}
		unguarded := consumer{name: "unguarded", guard: unguarded, handler: c.accounts.autocommit(c.pool)}
		assert.ErrorContains(t, measure(unguarded), "20 events were acked and 30 had their effect")
	})
}

// unguarded is no middleware.
func unguarded() (message.HandlerMiddleware, error) {
	return func(h message.HandlerFunc) message.HandlerFunc { return h }, nil
}

func TestEventsInFlightBookToDifferentAccounts(t *testing.T) {
	t.Parallel()
	used := map[int]bool{}
	for n := range accountRows {
		used[account(n)] = true
	}
	assert.Len(t, used, accountRows)
	assert.False(t, used[0] || used[accountRows+1])
}

func TestIDsOfTheFilledRecord(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 8, 30, 0, 0, time.UTC)
	id := uuid.UUID(idAt(at).Bytes)
	assert.Equal(t, uuid.Version(7), id.Version())
	assert.Equal(t, uuid.RFC4122, id.Variant())
	seconds, nanoseconds := id.Time().UnixTime()
	assert.Equal(t, at, time.Unix(seconds, nanoseconds).UTC())
	assert.Less(t, fmt.Sprint(id), fmt.Sprint(uuid.UUID(idAt(at.Add(time.Millisecond)).Bytes)))
}
