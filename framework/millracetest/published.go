package millracetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// Published asserts which events the transaction has published to the topic so far, in any order, and returns them with their IDs
// and keys. Other topics, and events of other transactions, are not checked. Delayed events count.
//
//	err := pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
//		…
//		millracetest.Published(t, tx, Completed, LabourCompleted{LabourID: "7"})
//		return nil
//	})
func Published[T any](t testing.TB, tx pgx.Tx, topic *framework.TopicOf[T], want ...T) []*message.Message {
	t.Helper()
	found, err := published(t, tx, topic.Name())
	if err != nil {
		t.Fatalf("millracetest: read the events on %s: %v", topic.Name(), err)
		return nil
	}
	var wanted, got []string
	for _, event := range want {
		msg, err := topic.Message(t.Context(), "", event)
		if err != nil {
			t.Fatalf("millracetest: %v", err)
			return nil
		}
		wanted = append(wanted, canonical(msg.Payload))
	}
	for _, msg := range found {
		got = append(got, canonical(msg.Payload))
	}
	slices.Sort(wanted)
	sorted := slices.Sorted(slices.Values(got))
	if !slices.Equal(wanted, sorted) {
		t.Errorf("millracetest: the transaction has published to %s: %s, want %s", topic.Name(), list(sorted), list(wanted))
	}
	return found
}

// published reads the outboxes that the transaction has written to. It takes rows whose transaction is in progress: those are the
// transaction's own, because it cannot see uncommitted rows of others.
func published(t testing.TB, tx pgx.Tx, topic string) (found []*message.Message, err error) {
	ctx := t.Context()
	if err := pgtx.Flush(pgtx.With(ctx, tx)); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `select distinct l.relation::regclass::text from pg_locks l join pg_class c on c.oid = l.relation
		where l.pid = pg_backend_pid() and l.mode = 'RowExclusiveLock' and c.relname in ('outbox', 'outbox_delayed') order by 1`)
	if err != nil {
		return nil, err
	}
	outboxes, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	for _, table := range outboxes {
		rows, err := tx.Query(ctx, fmt.Sprintf(`select event_id, key, headers, payload from %s where topic = $1 and pg_xact_status(
			(((pg_current_xact_id()::text::numeric)::bigint >> 32 << 32) | xmin::text::bigint)::text::xid8) = 'in progress'`, table), topic)
		if err != nil {
			return nil, err
		}
		var id, key string
		var headers, payload []byte
		if _, err := pgx.ForEachRow(rows, []any{&id, &key, &headers, &payload}, func() error {
			msg := message.NewMessage(id, slices.Clone(payload))
			found = append(found, msg)
			if err := json.Unmarshal(headers, &msg.Metadata); err != nil {
				return fmt.Errorf("event %s: its metadata: %w", id, err)
			}
			transport.SetKey(msg, key)
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// canonical returns a JSON payload with sorted fields, and any other payload quoted.
func canonical(payload []byte) string {
	var value any
	if json.Unmarshal(payload, &value) != nil {
		return fmt.Sprintf("%q", payload)
	}
	text, err := json.Marshal(value)
	if err != nil {
		return string(payload)
	}
	return string(text)
}
