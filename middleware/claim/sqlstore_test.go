package claim_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/claim/claimtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// sqlEffect writes in the handler's *sql.Tx.
func sqlEffect(ctx context.Context, table, id string) error {
	tx, ok := pgtx.SQLFrom(ctx)
	if !ok {
		return errors.New("the handler's context carries no *sql.Tx")
	}
	_, err := tx.ExecContext(ctx, `insert into `+table+` values ($1)`, id)
	return err
}

func openSQL(t *testing.T, f *fixture) *sql.DB {
	db := stdlib.OpenDBFromPool(f.pool)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	return db
}

func TestSQLStoreConforms(t *testing.T) {
	t.Parallel()
	claimtest.Run(t, func(t *testing.T) claimtest.Fixture {
		pool, schema := conformancePool(t), devtest.Schema(t)
		f := claimtest.Postgres(t, pool, schema)
		db := stdlib.OpenDBFromPool(pool)
		t.Cleanup(func() { assert.NoError(t, db.Close()) })
		f.Store = claim.NewSQLStore(db, claim.Schema(schema))
		f.Effect = func(ctx context.Context, id string) error { return sqlEffect(ctx, schema+".claimtest_effect", id) }
		f.Events = 1000
		return f
	})
}

// Consumers with either driver exclude one another, and place their records alike.
func TestSQLStoreBesideThePostgresStore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := claim.NewSQLStore(openSQL(t, f), claim.Schema(f.schema))
	ctx, none := t.Context(), func(context.Context) error { return nil }
	for _, key := range []claim.Key{{EventID: mintedAt(0)}, {EventID: "order 1"}, {EventID: mintedAt(-day)}} {
		key.Consumer = "labour/notify"
		end := f.holding(key)
		require.ErrorIs(t, other.Do(ctx, key, none), claim.ErrContended)
		require.NoError(t, end(nil))
		require.ErrorIs(t, other.Do(ctx, key, none), claim.ErrCompleted)
	}
	f.midnight()
	key := claim.Key{Consumer: "labour/notify", EventID: mintedAt(0)}
	require.NoError(t, other.Do(ctx, key, none), "the day is made")
	f.refuses(key, claim.ErrCompleted)
	require.ErrorIs(t, other.Do(ctx, claim.Key{Consumer: "labour/notify", EventID: mintedAt(30 * day)}, none), claim.ErrClock)
	f.retain()
	require.ErrorIs(t, other.Do(ctx, claim.Key{Consumer: "labour/notify", EventID: mintedAt(-10 * day)}, none), claim.ErrTooOld)
	require.NoError(t, other.Do(ctx, claim.Key{Consumer: "late", EventID: mintedAt(-10 * day)}, none))
}

// A handler of the middleware writes and returns messages in one transaction of database/sql, durably.
func TestSQLStoreUnderTheMiddleware(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	db := stdlib.OpenDBFromPool(devtest.PoolOn(t, f.pool.Config().ConnString(), func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	}))
	defer db.Close()
	c, err := claim.New(claim.NewSQLStore(db, claim.Schema(f.schema)), claim.Config{Service: "labour", Consumer: func(string) string { return "notify" }, Logger: silent})
	require.NoError(t, err)
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: f.schema})
	require.NoError(t, err)
	fail := errOops
	handler := c.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		var durable string
		tx, _ := pgtx.SQLFrom(msg.Context())
		require.NoError(t, tx.QueryRowContext(msg.Context(), `show synchronous_commit`).Scan(&durable))
		assert.Equal(t, "on", durable)
		require.NoError(t, events.Publish("sent", message.NewMessageWithContext(msg.Context(), outbox.NewID(), nil)))
		return nil, errors.Join(sqlEffect(msg.Context(), f.schema+".effect", msg.UUID), fail)
	})
	for _, fail = range []error{errOops, nil, nil} {
		msg, _ := deliver(t, "1")
		_, err := handler(msg)
		require.ErrorIs(t, err, fail)
	}
	assert.Equal(t, map[string]int{"1": 1}, f.effects())
	assert.Equal(t, 1, f.count("outbox"))
}

func TestSQLStoreRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	store := claim.NewSQLStore(openSQL(t, f), claim.Schema(f.schema))
	key := claim.Key{Consumer: "labour/notify", EventID: "1"}
	err := store.Do(t.Context(), key, func(ctx context.Context) error {
		tx, _ := pgtx.SQLFrom(ctx)
		_, err := tx.ExecContext(ctx, `select 1/0`)
		require.Error(t, err)
		return nil
	})
	require.ErrorIs(t, err, pgx.ErrTxCommitRollback, "a swallowed error completes nothing")
	require.NotErrorIs(t, err, pgtx.ErrOutcomeUnknown)
	require.ErrorContains(t, store.Do(t.Context(), key, func(ctx context.Context) error { return store.Do(ctx, key, nil) }), "is the middleware there twice?")
	assert.Zero(t, f.count("processed"))
	err = store.Do(t.Context(), key, func(ctx context.Context) error {
		tx, _ := pgtx.SQLFrom(ctx)
		var pid int
		require.NoError(t, tx.QueryRowContext(ctx, `select pg_backend_pid()`).Scan(&pid))
		f.exec(`select pg_terminate_backend($1)`, pid)
		return nil
	})
	require.Error(t, err)
	_, err = claim.New(claim.NewSQLStore(nil), claim.Config{Service: "labour", Ordered: true})
	require.ErrorContains(t, err, "db is nil")
	require.ErrorContains(t, err, "Config.Ordered is set")
}
