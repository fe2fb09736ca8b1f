package outbox_test

import (
	"context"
	"encoding/binary"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/internal/entry"
	"github.com/millrace-go/millrace/pgtx"
)

// unread is an outbox whose publisher writes into the WAL. Its slot is there, and no relay reads it.
func unread(t testing.TB, settings map[string]string) *cluster {
	f := newCluster(t, devtest.PoolOn(t, devtest.Postgres(t, devstack.ServerConfig{Settings: settings}).DSN()), "unread")
	f.publisher = f.intoTheLog()
	_, err := f.pool.Exec(t.Context(), `create publication nothing`)
	require.NoError(t, err)
	f.createLogSlot()
	return f
}

// intoTheLog returns a publisher that writes into the WAL.
func (f *fixture) intoTheLog() *outbox.Publisher {
	p, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: f.schema, Store: outbox.Log})
	require.NoError(f.t, err)
	return p
}

// logSlot is the name of the slot that keeps the WAL.
func (f *fixture) logSlot() (name string) {
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), `select `+f.schema+`.outbox_landing_slot()`).Scan(&name))
	return name
}

func (f *fixture) createLogSlot() {
	_, err := f.pool.Exec(f.t.Context(), `select pg_create_logical_replication_slot($1, 'pgoutput')`, f.logSlot())
	require.NoError(f.t, err)
}

func (f *fixture) dropLogSlot() {
	_, err := f.pool.Exec(f.t.Context(), `select pg_drop_replication_slot($1)`, f.logSlot())
	require.NoError(f.t, err)
}

// logged returns the events that the slot shows: those of committed transactions.
func (f *fixture) logged() (events []entry.Entry) {
	rows, err := f.pool.Query(f.t.Context(), `select data from pg_logical_slot_peek_binary_changes($1, null, null, 'proto_version', '1', 'publication_names', 'nothing', 'messages', 'true')`, f.logSlot())
	require.NoError(f.t, err)
	data, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	require.NoError(f.t, err)
	for _, b := range data {
		if b[0] != 'M' {
			continue
		}
		prefix, content, found := strings.Cut(string(b[10:]), "\x00") // after the type, flags and the LSN
		require.True(f.t, found)
		require.Equal(f.t, entry.Prefix(f.schema), prefix)
		require.EqualValues(f.t, len(content)-4, binary.BigEndian.Uint32([]byte(content)))
		e, err := entry.Decode([]byte(content[4:]))
		require.NoError(f.t, err)
		events = append(events, e)
	}
	return events
}

// loggedPayloads are the payloads of logged.
func (f *fixture) loggedPayloads() (payloads []string) {
	for _, e := range f.logged() {
		payloads = append(payloads, string(e.Payload))
	}
	return payloads
}

// The WAL shows what was committed, in order, and nothing that was rolled back, with its transaction or its savepoint. No event is a row.
func TestEventsInTheWALShareTheTransactionsFate(t *testing.T) {
	t.Parallel()
	f := unread(t, nil)
	publish := func(ctx context.Context, payloads ...string) error {
		msgs := make([]*message.Message, len(payloads))
		for i, p := range payloads {
			msgs[i] = newMessage(ctx, "k", p)
		}
		return f.publisher.Publish(topic, msgs...)
	}
	require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
		msg := newMessage(ctx, "k", "1")
		require.NoError(t, f.publisher.Publish(topic, msg))
		msg.Payload[0] = 'x' // it is the caller's again
		require.NoError(t, publish(ctx, "2", "3"))
		require.NoError(t, pgtx.Run(ctx, f.pool, func(ctx context.Context, _ pgx.Tx) error { return publish(ctx, "4") }))
		require.ErrorIs(t, pgtx.Run(ctx, f.pool, func(ctx context.Context, _ pgx.Tx) error {
			return errors.Join(publish(ctx, "undone"), errOops)
		}), errOops)
		require.ErrorIs(t, pgtx.Run(ctx, f.pool, func(ctx context.Context, _ pgx.Tx) error {
			return errors.Join(publish(ctx, "sent and undone"), pgtx.Flush(ctx), errOops)
		}), errOops)
		_, err := tx.Exec(ctx, `savepoint by_hand`)
		require.NoError(t, err)
		require.NoError(t, publish(ctx, "undone by hand"))
		_, err = tx.Exec(ctx, `rollback to by_hand`)
		require.NoError(t, err)
		return publish(ctx, "5")
	}))
	require.ErrorIs(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		return errors.Join(publish(ctx, "rolled back"), pgtx.Flush(ctx), errOops)
	}), errOops)
	db := stdlib.OpenDB(*f.pool.Config().ConnConfig)
	defer db.Close()
	for _, commit := range []bool{true, false} {
		payloads := []string{"rolled back", "too"}
		if commit {
			payloads = []string{"6", "7"}
		}
		tx, err := f.pool.Begin(t.Context())
		require.NoError(t, err)
		require.NoError(t, publish(pgtx.With(t.Context(), tx), payloads...))
		other, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, publish(pgtx.WithSQL(t.Context(), other), payloads...))
		require.NoError(t, publish(pgtx.WithSQL(t.Context(), other), payloads[0]))
		if commit {
			require.NoError(t, errors.Join(tx.Commit(t.Context()), other.Commit()))
		} else {
			require.NoError(t, errors.Join(tx.Rollback(t.Context()), other.Rollback()))
		}
	}
	assert.Equal(t, []string{"1", "2", "3", "4", "5", "6", "7", "6", "7", "6"}, f.loggedPayloads())
	assert.Zero(t, f.rows())
}

// An event in the WAL has all that an event in a row has. Delayed events are rows, with which the WAL has nothing to do.
func TestEventsInTheWALAreWhole(t *testing.T) {
	t.Parallel()
	f := unread(t, nil)
	strange := []string{"", "Ünïcödé ☃", "\x00\xff binary", strings.Repeat("long", 100_000)}
	var ids []string
	require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		for i, s := range strange {
			msg := newMessage(ctx, "key "+strconv.Itoa(i), s)
			msg.Metadata["m"] = "v"
			later := newMessage(ctx, "k", "later")
			outbox.SetDeliverAfter(later, outbox.MaxDelay)
			require.NoError(t, f.publisher.Publish(topic, msg, later))
			ids = append(ids, msg.UUID)
		}
		return nil
	}))
	events := f.logged()
	require.Len(t, events, len(strange))
	for i, e := range events {
		assert.Equal(t, entry.Entry{ID: ids[i], Topic: topic, Key: "key " + strconv.Itoa(i), Headers: []byte(`{"m":"v"}`), Payload: []byte(strange[i])}, e)
	}
	assert.Zero(t, f.rows())
	assert.Equal(t, len(strange), f.delayed())
}

// An event that no slot keeps would be lost. So its transaction cannot commit, whoever owns it and whether it ignores the error.
func TestEventsInTheWALAreRefusedWithoutASlot(t *testing.T) {
	t.Parallel()
	f := unread(t, map[string]string{"max_slot_wal_keep_size": "1MB"})
	changes := func() (n int) {
		require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*) from `+f.schema+`.change`).Scan(&n))
		return n
	}
	exec := func(sql string, args ...any) {
		_, err := f.pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	db := stdlib.OpenDB(*f.pool.Config().ConnConfig)
	defer db.Close()
	refused := func(why string) {
		t.Helper()
		before := changes()
		for n := range 2 { // one event and two have statements of their own
			publish := func(ctx context.Context) error {
				return f.publisher.Publish(topic, []*message.Message{newMessage(ctx, "k", "1"), newMessage(ctx, "k", "2")}[:n+1]...)
			}
			insert := `insert into ` + f.schema + `.change values (gen_random_uuid())`
			err := pgtx.Run(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, insert)
				return errors.Join(err, publish(ctx))
			})
			require.ErrorIs(t, err, outbox.ErrNoLog, why)
			require.ErrorContains(t, err, "start a relay with RelayConfig.Store Log", why)

			tx, err := f.pool.Begin(t.Context())
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), insert)
			require.NoError(t, err)
			require.ErrorIs(t, publish(pgtx.With(t.Context(), tx)), outbox.ErrNoLog, why)
			require.ErrorIs(t, tx.Commit(t.Context()), pgx.ErrTxCommitRollback)

			other, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			_, err = other.ExecContext(t.Context(), insert)
			require.NoError(t, err)
			require.ErrorIs(t, publish(pgtx.WithSQL(t.Context(), other)), outbox.ErrNoLog, why)
			require.Error(t, other.Commit())
		}
		require.Equal(t, before, changes(), why)
	}
	accepted := func() {
		t.Helper()
		_, err := f.change(t.Context(), f.pool, "k", false)
		require.NoError(t, err)
	}
	accepted()
	f.dropLogSlot()
	refused("the slot was dropped")

	other := func(database string) *pgx.Conn {
		cfg := f.pool.Config().ConnConfig
		cfg.Database = database
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		require.NoError(t, err)
		return conn
	}
	session := other(f.pool.Config().ConnConfig.Database)
	_, err := session.Exec(t.Context(), `select pg_create_logical_replication_slot($1, 'pgoutput', true)`, f.logSlot())
	require.NoError(t, err)
	refused("the slot ends with its session")
	require.NoError(t, session.Close(t.Context()))

	session = other("template1")
	_, err = session.Exec(t.Context(), `select pg_create_logical_replication_slot($1, 'pgoutput')`, f.logSlot())
	require.NoError(t, err)
	refused("the slot is that of another database")
	_, err = session.Exec(t.Context(), `select pg_drop_replication_slot($1)`, f.logSlot())
	require.NoError(t, err)
	require.NoError(t, session.Close(t.Context()))

	running, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = running.Exec(t.Context(), `insert into `+f.schema+`.change values ('running')`)
	require.NoError(t, err)
	var creating sync.WaitGroup
	creating.Go(f.createLogSlot)
	eventually(t, "the slot is being created", func() (is bool) {
		require.NoError(t, f.pool.QueryRow(t.Context(), `select exists (select from pg_replication_slots where slot_name = $1)`, f.logSlot()).Scan(&is))
		return is
	})
	refused("the slot may not see transactions that run")
	require.NoError(t, running.Commit(t.Context()))
	creating.Wait()
	accepted()

	eventually(t, "the slot is lost", func() (is bool) {
		exec(`select pg_logical_emit_message(false, 'fill', '')`)
		exec(`select pg_switch_wal()`)
		exec(`checkpoint`)
		require.NoError(t, f.pool.QueryRow(t.Context(), `select wal_status = 'lost' from pg_replication_slots where slot_name = $1`, f.logSlot()).Scan(&is))
		return is
	})
	refused("the slot is lost")
	f.dropLogSlot()
	f.createLogSlot()
	accepted()
}

// A transaction sends no more statements and makes no more round trips than with rows.
func TestEventsInTheWALCostNoRoundTrip(t *testing.T) {
	t.Parallel()
	f := unread(t, nil)
	pool, counter := devtest.CountedPool(t, func(cfg *pgxpool.Config) {
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig = f.pool.Config().ConnConfig
		cfg.ConnConfig.DialFunc = dial
	})
	published := 0
	for _, n := range []int{1, 500} {
		many := func(ctx context.Context) []*message.Message {
			published += n
			msgs := make([]*message.Message, n)
			for i := range msgs {
				msgs[i] = newMessage(ctx, "k", strconv.Itoa(i))
			}
			return msgs
		}
		for range 2 { // the first time it may prepare
			assert.Equal(t, 2, counter.Of(func() {
				require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
					for _, m := range many(ctx) {
						require.NoError(t, f.publisher.Publish(topic, m))
					}
					_, err := tx.Exec(ctx, `select $1::int`, 1)
					return err
				}))
			}), "BEGIN and the statement; the events and COMMIT")
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
		}
	}
	seen := len(f.logged())
	assert.Equal(t, published, seen)
}

// An event in the WAL costs the producer its own length there, and leaves nothing that vacuum must remove. Rows are the control.
func TestEventsInTheWALCostNoRow(t *testing.T) {
	t.Parallel()
	f := unread(t, nil)
	const events, size = 1000, 300
	cost := func(p *outbox.Publisher) (wal float64, pages int64) {
		position := func() (lsn int64) {
			require.NoError(t, f.pool.QueryRow(t.Context(), `select (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&lsn))
			return lsn
		}
		before := position()
		for range events {
			require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
				return p.Publish(topic, newMessage(ctx, "k", strings.Repeat("x", size)))
			}))
		}
		wal = float64(position()-before) / events
		require.NoError(t, f.pool.QueryRow(t.Context(), `select sum(pg_relation_size(oid)) from pg_class where relnamespace = $1::regnamespace and relname in ('outbox', 'outbox_landing')`, f.schema).Scan(&pages))
		return wal, pages
	}
	wal, pages := cost(f.publisher)
	assert.Zero(t, pages, "there was never a row")
	inRows, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: f.schema})
	require.NoError(t, err)
	walOfRows, pages := cost(inRows)
	assert.Positive(t, pages)
	t.Logf("bytes of WAL for an event of %d bytes: %.0f; as a row: %.0f", size, wal, walOfRows)
	assert.Less(t, wal, float64(size+300))
	assert.Less(t, wal, walOfRows)
}
