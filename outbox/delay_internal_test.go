package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox/internal/delayed"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// waiting is an outbox with delayed events, one for each due time, in seconds from now.
func waiting(t *testing.T, due ...int) (pool *pgxpool.Pool, schema, sql string) {
	pool, schema = devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, Migrate(t.Context(), pool, schema))
	p, err := NewPublisher(PublisherConfig{Schema: schema})
	require.NoError(t, err)
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		for i, s := range due {
			msg := message.NewMessageWithContext(ctx, fmt.Sprint("event ", i), []byte(fmt.Sprint(s)))
			transport.SetKey(msg, "k")
			if i%2 == 0 {
				msg.Metadata["a"], msg.Metadata[DueMetadata] = `"b"`, "of an event that this one copies"
			}
			SetDeliverAfter(msg, time.Hour)
			if err := p.Publish("topic", msg); err != nil {
				return err
			}
		}
		if err := pgtx.Flush(ctx); err != nil {
			return err
		}
		for i, s := range due {
			if _, err := tx.Exec(ctx, `update `+schema+`.outbox_delayed set due_at = clock_timestamp() + $1 * interval '1 second'
				where event_id = $2`, s, fmt.Sprint("event ", i)); err != nil {
				return err
			}
		}
		return nil
	}))
	return pool, schema, store.Query("delayed_move", schema)
}

func TestMoveDue(t *testing.T) {
	t.Parallel()
	pool, schema, sql := waiting(t, -10, -30, 3000, -20, 10_000)
	moved, hashes, next, err := moveDue(t.Context(), pool, sql, 2)
	require.NoError(t, err)
	assert.Equal(t, 2, moved)
	assert.Equal(t, []int64{store.Hash("k", ""), store.Hash("k", "")}, hashes)
	assert.Equal(t, moreIsDue, next)
	moved, _, next, err = moveDue(t.Context(), pool, sql, 2)
	require.NoError(t, err)
	assert.Equal(t, 1, moved)
	assert.InDelta(t, 3000, next.Seconds(), 60)

	rows, err := pool.Query(t.Context(), `select convert_from(payload, 'UTF8'), headers from `+schema+`.outbox order by seq`)
	require.NoError(t, err)
	var order []string
	var payload string
	var headers []byte
	_, err = pgx.ForEachRow(rows, []any{&payload, &headers}, func() error {
		order = append(order, payload)
		var md map[string]string
		require.NoError(t, json.Unmarshal(headers, &md), string(headers))
		due, err := time.Parse(time.RFC3339, md[DueMetadata])
		require.NoError(t, err)
		assert.Equal(t, time.UTC, due.Location())
		assert.Len(t, md[DueMetadata], len(dueLayout))
		if payload != "-20" && payload != "-30" {
			assert.Equal(t, `"b"`, md["a"])
		}
		return nil
	})
	require.NoError(t, err)
	assert.Equal(t, []string{"-30", "-20", "-10"}, order, "by due time")

	_, err = pool.Exec(t.Context(), `delete from `+schema+`.outbox_delayed where due_at < now() + interval '1 hour'`)
	require.NoError(t, err)
	_, _, next, err = moveDue(t.Context(), pool, sql, 2)
	require.NoError(t, err)
	assert.Equal(t, maxUntilDue, next)
}

func TestMoveDueOfNothing(t *testing.T) {
	t.Parallel()
	pool, _, sql := waiting(t)
	moved, hashes, next, err := moveDue(t.Context(), pool, sql, 10)
	require.NoError(t, err)
	assert.Zero(t, moved)
	assert.Empty(t, hashes)
	assert.Zero(t, next)
}

// What a transaction is about to cancel is left alone, and does not hold up the rest.
func TestMoveDueBesidesACancellation(t *testing.T) {
	t.Parallel()
	pool, schema, sql := waiting(t, -10, -20)
	p, err := NewPublisher(PublisherConfig{Schema: schema})
	require.NoError(t, err)
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
		ok, err := p.Cancel(ctx, "event 1")
		require.NoError(t, err)
		assert.True(t, ok)
		moved, _, _, err := moveDue(context.Background(), pool, sql, 10)
		assert.Equal(t, 1, moved)
		return err
	}))
	moved, _, _, err := moveDue(t.Context(), pool, sql, 10)
	require.NoError(t, err)
	assert.Zero(t, moved)
}

// Two movers at once would mix up the order.
func TestOneMoverAtATime(t *testing.T) {
	t.Parallel()
	pool, _, sql := waiting(t, -10, -20)
	require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		var moved int
		require.NoError(t, tx.QueryRow(ctx, sql, 1, maxMoveBytes).Scan(&moved, nil, nil))
		assert.Equal(t, 1, moved)
		moved, _, next, err := moveDue(context.Background(), pool, sql, 1)
		assert.Zero(t, moved)
		assert.Zero(t, next)
		return err
	}))
	moved, _, _, err := moveDue(t.Context(), pool, sql, 10)
	require.NoError(t, err)
	assert.Equal(t, 1, moved)
}

// The relay's clock and the role's settings do not matter.
func TestMoveDueUnderSerializable(t *testing.T) {
	t.Parallel()
	pool, _, sql := waiting(t, -10)
	cfg := pool.Config()
	cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	cfg.ConnConfig.RuntimeParams["timezone"] = "Asia/Kathmandu"
	other, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer other.Close()
	moved, _, _, err := moveDue(t.Context(), other, sql, 10)
	require.NoError(t, err)
	assert.Equal(t, 1, moved)
}

// A thousand large events took longer than a statement may. So half as many moved, then again as many as before, and every second move failed.
func TestMoveDueIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	pool, schema, sql := waiting(t, -50, -40, -30, -20, -10, 3000)
	for event, size := range map[string]int{"event 0": maxMoveBytes + 1, "event 1": maxMoveBytes/2 - 1000, "event 2": maxMoveBytes/2 - 1000, "event 3": 2000} {
		_, err := pool.Exec(t.Context(), `update `+schema+`.outbox_delayed set payload = convert_to(repeat('p', $1), 'UTF8') where event_id = $2`, size, event)
		require.NoError(t, err)
	}
	for _, events := range []int{1, 2} {
		moved, hashes, next, err := moveDue(t.Context(), pool, sql, delayed.Most)
		require.NoError(t, err)
		assert.Equal(t, events, moved)
		assert.Len(t, hashes, events)
		assert.Equal(t, moreIsDue, next)
	}
	moved, _, next, err := moveDue(t.Context(), pool, sql, delayed.Most)
	require.NoError(t, err)
	assert.Equal(t, 2, moved)
	assert.InDelta(t, 3000, next.Seconds(), 60)
}

// After a failed move, a lower limit lowers the bytes too: large events never reach the limit.
func TestMoveDueOfHalfTheLimit(t *testing.T) {
	t.Parallel()
	pool, schema, sql := waiting(t, -20, -10)
	_, err := pool.Exec(t.Context(), `update `+schema+`.outbox_delayed set payload = convert_to(repeat('p', $1), 'UTF8')`, maxMoveBytes/2-1000)
	require.NoError(t, err)
	moved, _, _, err := moveDue(t.Context(), pool, sql, delayed.Most/2)
	require.NoError(t, err)
	assert.Equal(t, 1, moved)
}
