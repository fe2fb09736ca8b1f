package outbox_test

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// payloads are those of the key's rows in their order.
func (f *fixture) payloads(key string) []string {
	rows, err := f.pool.Query(f.t.Context(), `select convert_from(payload, 'UTF8') from `+f.schema+`.outbox where key = $1 order by seq`, key)
	require.NoError(f.t, err)
	ps, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(f.t, err)
	return ps
}

// Events cost a transaction of Run's no round trip, and one of the caller's own a single one for each call.
func TestRoundTripsOfPublish(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pool, counter := devtest.CountedPool(f.t)
	many := func(ctx context.Context) []*message.Message {
		msgs := make([]*message.Message, 500)
		for i := range msgs {
			msgs[i] = newMessage(ctx, "k", strconv.Itoa(i))
		}
		return msgs
	}
	assert.Equal(t, 2, counter.Of(func() {
		require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			require.NoError(t, f.publisher.Publish(topic))
			for _, m := range many(ctx) {
				require.NoError(t, f.publisher.Publish(topic, m))
			}
			require.NoError(t, pgtx.Queue(ctx, `select 1`))
			_, err := tx.Exec(ctx, `select $1::int`, 1)
			return err
		}))
	}), "BEGIN and the statement; the events, what is queued, and COMMIT")
	assert.Equal(t, 1, counter.Of(func() {
		require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
			return f.publisher.Publish(topic, many(ctx)...)
		}))
	}), "only events")
	assert.Equal(t, 3, counter.Of(func() {
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		require.NoError(t, f.publisher.Publish(topic, many(pgtx.With(t.Context(), tx))...))
		require.NoError(t, tx.Commit(t.Context()))
	}), "BEGIN, the events, COMMIT")
	assert.Equal(t, 3000, f.rows())
}

func TestOrderWithinATransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: f.schema})
	require.NoError(t, err)
	require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
		require.NoError(t, f.publisher.Publish(topic, newMessage(ctx, "k", "1"), newMessage(ctx, "k", "2")))
		require.NoError(t, other.Publish(topic, newMessage(ctx, "k", "3")))
		require.NoError(t, pgtx.Run(ctx, f.pool, func(ctx context.Context, _ pgx.Tx) error {
			return f.publisher.Publish(topic, newMessage(ctx, "k", "4"))
		}))
		require.ErrorIs(t, pgtx.Run(ctx, f.pool, func(ctx context.Context, _ pgx.Tx) error {
			return errors.Join(f.publisher.Publish(topic, newMessage(ctx, "k", "undone")), errOops)
		}), errOops)
		_, err := tx.Exec(ctx, `savepoint by_hand`)
		require.NoError(t, err)
		require.NoError(t, f.publisher.Publish(topic, newMessage(ctx, "k", "undone by hand")))
		_, err = tx.Exec(ctx, `rollback to by_hand`)
		require.NoError(t, err)
		return f.publisher.Publish(topic, newMessage(ctx, "k", "5"))
	}))
	assert.Equal(t, []string{"1", "2", "3", "4", "5"}, f.payloads("k"))
}

// A message is the caller's again when Publish returns.
func TestMessageMayBeReused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		msg := newMessage(ctx, "k", "before")
		msg.Metadata["m"] = "before"
		require.NoError(t, f.publisher.Publish(topic, msg))
		copy(msg.Payload, "after!")
		msg.Metadata["m"] = "after"
		return nil
	}))
	assert.Equal(t, []string{"before"}, f.payloads("k"))
	var headers string
	require.NoError(t, f.pool.QueryRow(t.Context(), `select convert_from(headers, 'UTF8') from `+f.schema+`.outbox`).Scan(&headers))
	assert.JSONEq(t, `{"m":"before"}`, headers)
}

// What people put into an event comes out of the database unchanged, whichever driver wrote it.
func TestPublishInATransactionOfDatabaseSQL(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for mode, change := range map[string]func(*pgx.ConnConfig){
		"default":         func(*pgx.ConnConfig) {},
		"exec":            func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeExec },
		"simple protocol": func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol },
	} {
		cfg := f.pool.Config().ConnConfig
		change(cfg)
		db := stdlib.OpenDB(*cfg)
		defer db.Close()
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		ctx := pgtx.WithSQL(t.Context(), tx)
		strange := []string{"", "a,b", `"quoted"`, `back\slash`, "{curly}", "NULL", "line\nbreak", "Ünïcödé ☃", "\\x41", "\x00\xff binary"}
		msgs := make([]*message.Message, len(strange))
		for i, s := range strange {
			msgs[i] = newMessage(ctx, `k "\,{}`+mode, s)
		}
		msgs[0].Payload = nil
		require.NoError(t, f.publisher.Publish(topic, msgs...), mode)
		require.NoError(t, tx.Commit())
		rows, err := f.pool.Query(t.Context(), `select payload from `+f.schema+`.outbox where key = $1 order by seq`, `k "\,{}`+mode)
		require.NoError(t, err)
		payloads, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
		require.NoError(t, err)
		require.Len(t, payloads, len(strange))
		for i, p := range payloads {
			assert.Equal(t, strange[i], string(p), mode)
		}
	}
}

func TestPublishInAWrongDatabaseSQL(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	db := stdlib.OpenDB(*f.pool.Config().ConnConfig)
	defer db.Close()
	missing, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: "nowhere_at_all"})
	require.NoError(t, err)
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback()) }()
	require.ErrorContains(t, missing.Publish(topic, newMessage(pgtx.WithSQL(t.Context(), tx), "k", "p")), `run "millrace migrate up" or outbox.Migrate first`)
}

// Behind a pooler without prepared statements, under a role that is serializable by default.
func TestPublishWithoutPreparedStatements(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheDescribe} {
		cfg := f.pool.Config()
		cfg.ConnConfig.DefaultQueryExecMode = mode
		cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		require.NoError(t, err)
		defer pool.Close()
		require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
			return f.publisher.Publish(topic, newMessage(ctx, mode.String(), "1"), newMessage(ctx, mode.String(), "2"))
		}))
		assert.Equal(t, []string{"1", "2"}, f.payloads(mode.String()))
	}
}
