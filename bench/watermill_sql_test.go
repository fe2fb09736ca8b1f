package main

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
)

// The rows that the peers' tables are loaded with are those that their own publishers write.
func TestWatermillRowsAreItsPublishers(t *testing.T) {
	t.Parallel()
	dsn := devtest.Start(t, devstack.Postgres).PostgresDSN()
	w := watermillSQL{batch: 1000}
	require.NoError(t, withSchema(t.Context(), dsn, func(pool *pgxpool.Pool, schema string) error {
		require.NoError(t, w.create(t.Context(), pool, schema))
		events := newBacklog(20)
		publisher, err := watermillsql.NewPublisher(watermillsql.BeginnerFromPgx(pool),
			watermillsql.PublisherConfig{SchemaAdapter: w.schemaAdapter(schema)}, watermill.NopLogger{})
		require.NoError(t, err)
		var msgs []*message.Message
		for _, e := range events {
			msg := message.NewMessage(e.id, e.payload)
			transport.SetKey(msg, e.key)
			msgs = append(msgs, msg)
		}
		require.NoError(t, publisher.Publish(topic, msgs...))
		require.NoError(t, publisher.Close())
		require.NoError(t, w.write(t.Context(), pool, schema, events))

		rows, err := pool.Query(t.Context(), `select uuid || ' ' || metadata::text || ' ' || md5(payload)
			|| ' ' || (created_at is not null)::text || ' ' || (transaction_id = min(transaction_id) over (partition by "offset" > 20))::text
			from `+w.table(schema)+` order by "offset"`)
		require.NoError(t, err)
		got, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.Len(t, got, 40)
		assert.Equal(t, got[:20], got[20:])
		return err
	}))
}
