package effect_test

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/effect"
)

// deafConn does not hear the server's answer to the first COMMIT.
type deafConn struct {
	net.Conn
	commits *atomic.Int32
	deaf    atomic.Bool
}

func (c *deafConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("commit\x00")) && c.commits.Add(1) == 1 {
		c.deaf.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *deafConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.deaf.Load() { // it has committed
		_ = c.Close()
		return 0, errDown
	}
	return n, err
}

// Decisions are in the audit, the last first, page by page.
func TestAudit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, key := range []string{"a", "b"} {
		require.ErrorIs(t, effect.Once(f.ctx(), key, func(context.Context, string) error { return errOops }), effect.ErrInDoubt)
	}
	require.NoError(t, effect.Resolve(t.Context(), f.pool, f.schema, "labour/a", effect.Resolution{Done: true, By: "ada", Note: "seen there"}))
	require.NoError(t, effect.Resolve(t.Context(), f.pool, f.schema, "labour/b", effect.Resolution{By: "grace"}))
	found, err := effect.ListAudit(t.Context(), f.pool, f.schema, effect.AuditPage{})
	require.NoError(t, err)
	require.Len(t, found, 2)
	assert.Equal(t, []string{"labour/b", "not_done", "doubt", "grace", ""}, []string{found[0].Key, found[0].State, found[0].Before, found[0].Actor, found[0].Note})
	assert.Equal(t, []string{"labour/a", "done", "doubt", "ada", "seen there"}, []string{found[1].Key, found[1].State, found[1].Before, found[1].Actor, found[1].Note})
	older, err := effect.ListAudit(t.Context(), f.pool, f.schema, effect.AuditPage{Before: found[0].ID})
	require.NoError(t, err)
	assert.Equal(t, found[1:], older)
	last, err := effect.ListAudit(t.Context(), f.pool, f.schema, effect.AuditPage{Limit: 1})
	require.NoError(t, err)
	assert.Equal(t, found[:1], last)

	require.NoError(t, effect.AuditReveal(t.Context(), f.pool, f.schema, effect.Entry{Key: "labour/a", State: "done", Response: []byte(`"secret"`)}, "ada"))
	require.Error(t, effect.AuditReveal(t.Context(), f.pool, f.schema, effect.Entry{Key: "labour/a", State: "done"}, ""))
	last, err = effect.ListAudit(t.Context(), f.pool, f.schema, effect.AuditPage{Limit: 1})
	require.NoError(t, err)
	last[0].ID, last[0].At = 0, time.Time{}
	assert.Equal(t, []effect.Audit{{Actor: "ada", Action: "reveal", Key: "labour/a", State: "done", Before: "done"}}, last)
	assert.Equal(t, "resolve", found[0].Action)
}

// The decision had committed and its answer was lost: the next attempt found the effect settled and reported an error.
func TestResolveWhenTheAnswerToCommitIsLost(t *testing.T) {
	t.Parallel()
	for name, decision := range map[string]effect.Resolution{
		"done":     {Done: true, Response: []byte("7"), By: "ada"},
		"not done": {By: "ada"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			require.ErrorIs(t, effect.Once(f.ctx(), "key", func(context.Context, string) error { return errOops }), effect.ErrInDoubt)
			var commits atomic.Int32
			pool := devtest.PoolOn(t, f.pool.Config().ConnString(), func(c *pgxpool.Config) {
				c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
					conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
					return &deafConn{Conn: conn, commits: &commits}, err
				}
			})
			require.NoError(t, effect.Resolve(t.Context(), pool, f.schema, "labour/key", decision))
			assert.Equal(t, int32(2), commits.Load(), "it was tried again")
			var decisions int
			require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*) from `+f.schema+`.effect_resolution`).Scan(&decisions))
			assert.Equal(t, 1, decisions)
			assert.Empty(t, f.entries("open"))
			other := effect.Resolution{Done: !decision.Done, By: "ada"}
			require.ErrorContains(t, effect.Resolve(t.Context(), pool, f.schema, "labour/key", other), "nothing to decide")
		})
	}
}
