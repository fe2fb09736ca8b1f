package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/brokermigration"
	"github.com/millrace-go/millrace/transport"
)

// broker is one with a name alone.
type broker struct {
	transport.Transport
	name string
}

func (b broker) Name() string { return b.name }

// A process that holds the lock of the step for longer than the step waits does not end the journey.
func TestStepWaitsForABusyDatabase(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
	v := &voyage{pool: pool, query: brokermigration.Query{Pool: pool, Schema: schema, From: broker{name: "old"}, To: broker{name: "new"}}}
	_, err := pool.Exec(t.Context(), pgschema.Render(`insert into {schema}.outbox_broker (epoch, from_name, to_name, phase) values (1, 'old', 'new', 'publish')`, schema))
	require.NoError(t, err)

	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }() // if the test fails
	_, err = tx.Exec(t.Context(), pgschema.Render(`select pg_advisory_xact_lock(hashtextextended('{schema}.outbox_broker', 0))`, schema))
	require.NoError(t, err)
	_, err = brokermigration.Step(t.Context(), v.query, false, "test")
	require.ErrorContains(t, err, "lock timeout")
	made := make(chan error, 1)
	go func() { made <- v.step(t.Context(), brokermigration.Cut) }()
	select {
	case err := <-made:
		require.Fail(t, "the step has not waited", "%v", err)
	case <-time.After(2500 * time.Millisecond): // two of its attempts
	}
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, <-made)

	assert.NoError(t, v.step(t.Context(), brokermigration.Cut), "a step that was made, and whose answer was lost")
	r, err := brokermigration.ReadRecord(t.Context(), pool, schema)
	require.NoError(t, err)
	assert.EqualValues(t, 2, r.Epoch)
}
