package outbox_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

func withoutStatements(cfg *pgxpool.Config) {
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
}

// sessionSettings are those that a relay or a publisher has reason to change, as another client of the pooler meets them.
func sessionSettings(t *testing.T, pool *pgxpool.Pool) map[string]string {
	settings := map[string]string{}
	rows, err := pool.Query(t.Context(), `select name, setting from pg_settings where source = 'session'
		or name in ('synchronous_commit', 'plan_cache_mode', 'default_transaction_isolation', 'search_path', 'lock_timeout', 'statement_timeout')`)
	require.NoError(t, err)
	var name, setting string
	_, err = pgx.ForEachRow(rows, []any{&name, &setting}, func() error {
		settings[name] = setting
		return nil
	})
	require.NoError(t, err)
	return settings
}

// A pooler in transaction mode hands a session from client to client: a setting that outlives its transaction would make
// a stranger's commits asynchronous, and a relay that cannot do without a session of its own would forward nothing.
func TestPooler(t *testing.T) {
	t.Parallel()
	server := devtest.Postgres(t, devstack.ServerConfig{})
	bouncer := devtest.PgBouncer(t, server, 1) // a single session, so that whatever leaks is met
	other := devtest.PoolOn(t, bouncer.DSN(), withoutStatements)
	before := sessionSettings(t, other)
	require.Equal(t, "on", before["synchronous_commit"])

	f := newCluster(t, devtest.PoolOn(t, bouncer.DSN(), withoutStatements), "pooler")
	broker := newLedger()
	f.relayOn(devtest.PoolOn(t, bouncer.DSN(), withoutStatements), broker)
	writing := f.write(4)
	for n := range 50 {
		eventually(t, "writers and relay are at work", func() bool { return writing.count() > 4*n && broker.count() > 4*n })
		require.Equal(t, before, sessionSettings(t, other))
	}
	writing.end()
	lost, vanished := f.drained(broker)
	assert.Empty(t, lost)
	assert.Empty(t, vanished)
	assert.Equal(t, before, sessionSettings(t, other))

	_, err := f.pool.Exec(t.Context(), `set synchronous_commit = off`)
	require.NoError(t, err)
	require.NotEqual(t, before, sessionSettings(t, other), "what leaks is found")
}

// A LISTEN through the pooler is heard by whichever client has the session when a notification comes. Nobody may rely on
// it, and nobody may suffer from it: the poll finds what is committed, and notifications harm no other client.
func TestPoolerWithoutWakeUp(t *testing.T) {
	t.Parallel()
	server := devtest.Postgres(t, devstack.ServerConfig{})
	bouncer := devtest.PgBouncer(t, server, 2)
	f := newCluster(t, devtest.PoolOn(t, bouncer.DSN(), withoutStatements), "pooler_poll")
	notifier, err := outbox.NewNotifier(f.pool, outbox.NotifierConfig{Schema: f.schema})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- notifier.Run(ctx) }()
	broker := newLedger()
	f.relayOn(f.pool, broker)
	for n := range 20 {
		// No wake-up in this process, as Millrace does not see this commit.
		tx, err := f.pool.Begin(ctx)
		require.NoError(t, err)
		require.NoError(t, f.publisher.Publish(topic, newMessage(pgtx.With(ctx, tx), "k", "polled")))
		require.NoError(t, tx.Commit(ctx))
		eventually(t, "the poll finds it", func() bool { return broker.count() == 2*n+1 })
		_, err = f.change(ctx, f.pool, "k", false) // and a notification
		require.NoError(t, err)
		eventually(t, "it is published", func() bool { return broker.count() == 2*n+2 })
	}
	cancel()
	require.NoError(t, <-done)
	eventually(t, "the outbox drains", func() bool { return f.rows() == 0 })
}
