package claim_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// writes is a handler that writes one row with a repository's function, which has a second pool of the same database, and
// fails at its first attempt. Prepare makes the context of that function.
func (f *fixture) writes(second *pgxpool.Pool, prepare func(context.Context) context.Context) message.NoPublishHandlerFunc {
	attempts := 0
	return func(msg *message.Message) error {
		err := pgtx.Run(prepare(msg.Context()), second, func(ctx context.Context, _ pgx.Tx) error { return f.effect(ctx, msg.UUID) })
		if attempts++; err == nil && attempts == 1 {
			return errOops
		}
		return err
	}
}

// A handler left its claim through a second pool, and nobody noticed: it was retried after an error, and its row was there
// twice.
func TestDetachedRunInAClaimIsRefused(t *testing.T) {
	perMode(t, testDetachedRunInAClaimIsRefused)
}

func testDetachedRunInAClaimIsRefused(t *testing.T, f *fixture) {
	m, second := f.broker(), devtest.Pool(t)
	same := func(ctx context.Context) context.Context { return ctx }
	stop := f.serve(m, claim.Config{MaxAttempts: 2}, f.writes(second, same))
	f.publish(m, keyed(outbox.NewID(), ""))
	f.eventually(func() bool { return f.count("claim_failed where state = 'dead'") == 1 }, "it is a dead letter")
	stop()
	assert.Empty(t, f.effects())
	row := f.failed()[0]
	assert.Equal(t, "attempts", row.Reason)
	for _, want := range []string{"another handle", second.Config().ConnConfig.Database, "Use the same handle for both", "pgtx.Detached(ctx)"} {
		assert.Contains(t, row.Error, want, "both handles and the remedy")
	}

	f.serve(m, claim.Config{}, f.take)
	replayed, err := deadletter.Replay(t.Context(), f.pool, f.schema, deadletter.Selection{}, deadletter.By{Actor: "test"})
	require.NoError(t, err)
	assert.Equal(t, 1, replayed.Done)
	f.eventually(func() bool { return f.count("claim_failed") == 0 }, "with the claim's transaction it is handled")
	assert.Equal(t, map[string]int{row.EventID: 1}, f.effects())
}

// The control of the test above: what is detached commits by itself, at each attempt.
func TestDetachedRunInAClaimCommitsByItself(t *testing.T) {
	t.Parallel()
	f, second := newFixture(t), devtest.Pool(t)
	m, id := f.broker(), outbox.NewID()
	stop := f.serve(m, claim.Config{}, f.writes(second, pgtx.Detached))
	f.publish(m, keyed(id, ""))
	f.eventually(func() bool { return f.effects()[id] == 2 }, "each attempt writes its row")
	stop()
	assert.Zero(t, f.count("claim_failed"), "the second attempt has succeeded")
}

// The same for a handler under a claim over database/sql, whose transaction Run cannot join.
func TestDetachedRunInAnSQLStoresClaim(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.claimIn(claim.NewSQLStore(openSQL(t, f), claim.Schema(f.schema)), claim.Config{})
	write := func(prepare func(context.Context) context.Context) error {
		msg, _ := deliver(t, outbox.NewID())
		_, err := c.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			return nil, pgtx.Run(prepare(msg.Context()), f.pool, func(ctx context.Context, _ pgx.Tx) error { return f.effect(ctx, msg.UUID) })
		})(msg)
		return err
	}
	err := write(func(ctx context.Context) context.Context { return ctx })
	require.ErrorContains(t, err, "pgtx.SQLFrom")
	require.ErrorContains(t, err, "pgtx.Detached(ctx)")
	assert.Empty(t, f.effects())
	require.NoError(t, write(pgtx.Detached))
	assert.Len(t, f.effects(), 1)
}
