package effect_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/effect"
)

var errDown = errors.New("the server is down")

// line is a network that can be cut: connections end, and there are no new ones.
type line struct{ down atomic.Bool }

type cutConn struct {
	net.Conn
	line *line
}

func (c cutConn) Write(b []byte) (int, error) {
	if c.line.down.Load() {
		_ = c.Close() // or pgx waits 15 s for the server to end it
		return 0, errDown
	}
	return c.Conn.Write(b)
}

func (l *line) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if l.down.Load() {
		return nil, errDown
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	return cutConn{conn, l}, err
}

func (f *fixture) onLine(cfg effect.Config) (context.Context, *line) {
	l := &line{}
	pool := devtest.PoolOn(f.t, f.pool.Config().ConnString(), func(c *pgxpool.Config) { c.ConnConfig.DialFunc = l.dial })
	return effect.With(f.t.Context(), f.open(pool, cfg)), l
}

// The call succeeds, and the database does not answer any more: the handler fails, and the effect is in doubt until the
// provider was asked.
func TestDatabaseDownWhenTheOutcomeIsKnown(t *testing.T) {
	t.Parallel()
	f, p := newFixture(t), newProvider(t, false)
	ctx, line := f.onLine(effect.Config{CallTimeout: 3 * time.Second, RecordTimeout: time.Second})
	sms := client{p.URL}
	_, err := effect.Value(ctx, "sms:1", func(ctx context.Context, key string) (string, error) {
		defer line.down.Store(true)
		return sms.send(ctx, key)
	}, effect.Reconcile(sms.reconcile))
	require.ErrorIs(t, err, effect.ErrInDoubt)
	require.ErrorIs(t, err, errDown)
	_, waits := retryAfter(err)
	assert.True(t, waits)
	err = effect.Once(ctx, "sms:2", func(context.Context, string) error { t.Error("called"); return nil })
	require.ErrorIs(t, err, errDown, "without an intent nothing is called")
	require.NotErrorIs(t, err, effect.ErrInDoubt)

	line.down.Store(false)
	number, err := f.redelivered(p, effect.Reconcile(sms.reconcile))
	require.NoError(t, err)
	assert.Equal(t, "SM1", number)
	assert.Equal(t, 1, p.texts())
}

// The database is away for a moment only: the record is made when it is back.
func TestDatabaseBackInTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, line := f.onLine(effect.Config{RecordTimeout: 30 * time.Second})
	calls, err := once(ctx, nil)
	require.NoError(t, err)
	require.Equal(t, 1, calls)
	require.NoError(t, effect.Once(ctx, "other", func(context.Context, string) error {
		line.down.Store(true)
		time.AfterFunc(200*time.Millisecond, func() { line.down.Store(false) })
		return nil
	}))
	assert.Len(t, f.entries("done"), 2)
}

// A server that is killed after the outcome was recorded still knows it, whatever the role's synchronous_commit is.
func TestRecordsAreDurable(t *testing.T) {
	t.Parallel()
	server := devtest.Postgres(t, devstack.ServerConfig{Settings: map[string]string{
		"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "autovacuum": "off",
	}})
	f := &fixture{t: t, pool: devtest.PoolOn(t, server.DSN()), schema: "effects"}
	require.NoError(t, effect.Migrate(t.Context(), f.pool, f.schema))
	f.ledger = f.open(f.pool, effect.Config{RecordTimeout: 30 * time.Second})
	f.exec(`create table lost (a int)`)
	calls, err := once(f.ctx(), nil)
	require.NoError(t, err)
	require.Equal(t, 1, calls)
	f.exec(`insert into lost values (1)`)
	require.NoError(t, server.Crash(t.Context()))
	require.NoError(t, server.Start(t.Context()))
	f.pool.Reset()
	require.Eventually(t, func() bool { return f.pool.Ping(t.Context()) == nil }, time.Minute, 20*time.Millisecond)
	calls, err = once(f.ctx(), nil)
	require.NoError(t, err)
	assert.Zero(t, calls)
	var left int
	require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*) from lost`).Scan(&left))
	assert.Zero(t, left, "what committed without waiting for the disk is gone: the test can fail")
}

// Behind a pooler the limits of the server say nothing, and everything works.
func TestBehindPgBouncer(t *testing.T) {
	t.Parallel()
	server := devtest.Postgres(t, devstack.ServerConfig{})
	bouncer := devtest.PgBouncer(t, server, 2)
	f := &fixture{t: t, schema: "effects", pool: devtest.PoolOn(t, bouncer.DSN(), func(c *pgxpool.Config) { c.MaxConns = 10_000 })}
	require.NoError(t, effect.Migrate(t.Context(), devtest.PoolOn(t, server.DSN()), f.schema))
	f.ledger = f.open(f.pool, effect.Config{})
	require.NoError(t, f.ledger.Check(t.Context()))
	for i := range 3 {
		calls, err := once(f.ctx(), nil)
		require.NoError(t, err)
		assert.Equal(t, i == 0, calls == 1)
	}
	direct := f.open(devtest.PoolOn(t, server.DSN(), func(c *pgxpool.Config) { c.MaxConns = 10_000 }), effect.Config{})
	require.ErrorContains(t, direct.Check(t.Context()), "and 10004 may be needed: the service's pool may open 10000 and the ledger 4")
}
