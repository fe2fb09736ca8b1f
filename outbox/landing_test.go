package outbox_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/internal/entry"
)

// landed is a cluster whose events are only in the WAL. A trigger records each row that is made of one, so that a test can tell whether one
// was made twice, whatever became of the row.
type landed struct {
	*cluster
	log *lockedBuffer // of its relays
}

func newLanded(t testing.TB, pool *pgxpool.Pool) *landed {
	l := &landed{newCluster(t, pool, "landing"), &lockedBuffer{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(l.log.String())
		}
	})
	l.exec(`create table landing.row (id bigint generated always as identity, event_id text);
		create function landing.note() returns trigger language plpgsql as $$ begin insert into landing.row (event_id) values (new.event_id); return new; end $$;
		create trigger note before insert on landing.outbox for each row execute function landing.note()`)
	return l
}

func (l *landed) exec(statements ...string) {
	l.t.Helper()
	for _, s := range statements {
		_, err := l.pool.Exec(context.Background(), s)
		require.NoError(l.t, err, s)
	}
}

// cfg is that of relays that land.
func (l *landed) cfg() outbox.RelayConfig {
	cfg := l.quick()
	cfg.Store, cfg.Logger = outbox.Log, slog.New(slog.NewTextHandler(l.log, nil))
	return cfg
}

// relay runs a relay that lands.
func (l *landed) relay(pool *pgxpool.Pool, broker *ledger) (relay *outbox.Relay, stop func()) {
	relay, err := outbox.NewRelay(pool, broker, l.cfg())
	require.NoError(l.t, err)
	outbox.WithLandingPatience(relay, 5*time.Second)
	return relay, l.run(relay)
}

// leads waits until a relay lands.
func leads(t testing.TB, r *outbox.Relay) {
	t.Helper()
	eventually(t, "the relay lands", func() bool { return outbox.LandingStatus(r).Leads })
}

// awaitSlot waits until a relay has made a slot and recorded where it begins.
func (l *landed) awaitSlot() {
	l.t.Helper()
	eventually(l.t, "there is a slot", func() (exists bool) {
		err := l.pool.QueryRow(context.Background(), `select exists (select from landing.outbox_landing where landed is not null)`).Scan(&exists)
		return assert.NoError(l.t, err) && exists
	})
}

// emit puts an event into the WAL, with a change of the same ID, in a transaction.
func (l *landed) emit(ctx context.Context, tx pgx.Tx, key, id string) error {
	content := entry.Entry{ID: id, Topic: topic, Key: key, Headers: []byte("{}"), Payload: []byte(id)}.Encode()
	_, err := tx.Exec(ctx, `with change as (insert into landing.change values ($1)) select pg_logical_emit_message(true, $2, $3::bytea)`, id, entry.Prefix("landing"), content)
	return err
}

// commit commits events of a key.
func (l *landed) commit(key string, ids ...string) {
	l.t.Helper()
	require.NoError(l.t, pgx.BeginFunc(context.Background(), l.pool, func(tx pgx.Tx) error {
		for _, id := range ids {
			if err := l.emit(context.Background(), tx, key, id); err != nil {
				return err
			}
		}
		return nil
	}))
}

// made lists the events that rows were made of, in order.
func (l *landed) made() []string {
	rows, err := l.pool.Query(context.Background(), `select event_id from landing.row order by id`)
	require.NoError(l.t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(l.t, err)
	return ids
}

// settled waits until what was committed has been landed and published, and checks that one row was made of each event.
func (l *landed) settled(broker *ledger) {
	l.t.Helper()
	committed := l.committed()
	eventually(l.t, "all are published", func() bool {
		missing, _ := broker.compare(committed)
		return len(missing) == 0 && l.rows() == 0
	})
	assert.ElementsMatch(l.t, committed, l.made(), "one row of each event, and of nothing else")
	_, others := broker.compare(committed)
	assert.Empty(l.t, others)
}

func idsOf(prefix string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = prefix + strconv.Itoa(i)
	}
	return ids
}

// Events of committed transactions become rows once and in the order of the commits, whoever has put them into the WAL; those that were rolled
// back do not. A large transaction is landed in parts.
func TestLanding(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := devtest.Postgres(t, devstack.ServerConfig{Settings: map[string]string{"max_prepared_transactions": "1"}})
	l, broker := newLanded(t, devtest.PoolOn(t, server.DSN())), newLedger()
	relay, stop := l.relay(l.pool, broker)
	leads(t, relay)

	var want []string
	commit := func(ids ...string) {
		l.commit("k", ids...)
		want = append(want, ids...)
	}
	commit("1", "2", "3")
	tx, err := l.pool.Begin(ctx)
	require.NoError(t, err)
	require.NoError(t, l.emit(ctx, tx, "k", "rolled back"))
	commit("4")
	require.NoError(t, tx.Rollback(ctx))

	require.NoError(t, pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error { // savepoints
		require.NoError(t, l.emit(ctx, tx, "k", "5"))
		_ = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			require.NoError(t, l.emit(ctx, tx, "k", "of a savepoint"))
			return errOops
		})
		require.NoError(t, pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return l.emit(ctx, tx, "k", "6") }))
		return nil
	}))
	want = append(want, "5", "6")

	late, err := l.pool.Begin(ctx) // it began earlier, and commits later
	require.NoError(t, err)
	require.NoError(t, l.emit(ctx, late, "other", "late"))
	commit("7")
	require.NoError(t, late.Commit(ctx))
	want = append(want, "late")

	db := stdlib.OpenDBFromPool(l.pool)
	defer db.Close()
	content := entry.Entry{ID: "8", Topic: topic, Key: "k", Headers: []byte(`{"a":"b"}`)}.Encode()
	for _, end := range []func(*sql.Tx) error{(*sql.Tx).Rollback, (*sql.Tx).Commit} {
		tx, err := db.BeginTx(ctx, nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(ctx, `insert into landing.change values ('8')`)
		require.NoError(t, err)
		_, err = tx.ExecContext(ctx, `select pg_logical_emit_message(true, $1, $2::bytea)`, entry.Prefix("landing"), content)
		require.NoError(t, err)
		require.NoError(t, end(tx))
	}
	want = append(want, "8")

	conn, err := l.pool.Acquire(ctx)
	require.NoError(t, err)
	_, err = conn.Exec(ctx, `begin`)
	require.NoError(t, err)
	content = entry.Entry{ID: "prepared", Topic: topic, Key: "k"}.Encode()
	_, err = conn.Exec(ctx, `select pg_logical_emit_message(true, $1, $2::bytea)`, entry.Prefix("landing"), content)
	require.NoError(t, err)
	_, err = conn.Exec(ctx, `prepare transaction 'p'`)
	require.NoError(t, err)
	commit("9")
	_, err = conn.Exec(ctx, `commit prepared 'p'`)
	require.NoError(t, err)
	conn.Release()
	l.exec(`insert into landing.change values ('prepared')`)
	want = append(want, "prepared")

	for _, foreign := range []string{`select pg_logical_emit_message(false, 'landing_outbox', 'not of a transaction')`, `select pg_logical_emit_message(true, 'landing_outboxes', 'another prefix')`} {
		l.exec(foreign)
	}
	commit(idsOf("large ", 20_000)...)
	l.settled(broker)
	assert.Equal(t, want, l.made())
	assert.Equal(t, len(want), int(outbox.LandingStatus(relay).Events))
	stop()

	commit("while there is no relay")
	_, stop = l.relay(l.pool, broker)
	l.settled(broker)
	assert.Equal(t, want, l.made())
	stop()

	confirmed := func() (confirmed bool) {
		require.NoError(t, l.pool.QueryRow(ctx, `select confirmed_flush_lsn >= landed from pg_replication_slots join landing.outbox_landing on slot_name = slot`).Scan(&confirmed))
		return confirmed
	}
	_, stop = l.relay(l.pool, broker)
	defer stop()
	eventually(t, "what was landed is confirmed", confirmed)
	_, err = l.pool.Exec(ctx, `create table filler as select repeat('x', 1000) as x from generate_series(1, 10000)`)
	require.NoError(t, err)
	eventually(t, "the slot keeps little while there are no events", func() (little bool) {
		l.exec(`checkpoint`)
		require.NoError(t, l.pool.QueryRow(ctx, `select pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn) < 3000000 from pg_replication_slots`).Scan(&little))
		return little
	})
}

// A relay process is killed while its transaction is on its way, and after it, before it has confirmed anything: the next one lands what it has
// not. A trigger that waits for a lock makes these moments long.
func TestLandingWithKilledRelays(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := devtest.Postgres(t, devstack.ServerConfig{})
	l := newLanded(t, devtest.PoolOn(t, server.DSN()))
	l.exec(`create function landing.hold() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock_shared(7); return new; end $$;
		create trigger hold before insert on landing.outbox for each row execute function landing.hold()`)
	broker := newDeliveries(t)
	broker.dsn = server.DSN()
	confirmed := func() (all bool) {
		require.NoError(t, l.pool.QueryRow(ctx, `select confirmed_flush_lsn >= landed from pg_replication_slots join landing.outbox_landing on slot_name = slot`).Scan(&all))
		return all
	}
	process := broker.relay(l.schema, lands)
	slot := func() (exists bool) {
		require.NoError(t, l.pool.QueryRow(ctx, `select exists (select from landing.outbox_landing where landed is not null)`).Scan(&exists))
		return exists
	}
	eventually(t, "there is a slot", slot)
	unconfirmed := 0
	for round := range devtest.Storm(6, 3) {
		holder, err := l.pool.Acquire(ctx)
		require.NoError(t, err)
		_, err = holder.Exec(ctx, `select pg_advisory_lock(7)`)
		require.NoError(t, err)
		l.commit("k", idsOf(fmt.Sprint(round, " "), 5)...)
		eventually(t, "its transaction waits", func() (waits bool) {
			require.NoError(t, l.pool.QueryRow(ctx, `select exists (select from pg_locks where locktype = 'advisory' and not granted)`).Scan(&waits))
			return waits
		})
		kill(process)
		next := broker.relay(l.schema, lands) // it begins while the other one's transaction may still commit
		_, err = holder.Exec(ctx, `select pg_advisory_unlock(7)`)
		require.NoError(t, err)
		holder.Release()
		eventually(t, "they are landed", func() bool { return len(l.made()) == 10*round+5 })
		process = next

		l.commit("k", idsOf(fmt.Sprint(round, " late "), 5)...)
		eventually(t, "they are landed", func() bool { return len(l.made()) == 10*round+10 })
		if !confirmed() {
			unconfirmed++
		}
		kill(process)
		process = broker.relay(l.schema, lands)
	}
	defer func() { kill(process) }()
	t.Logf("killed %d times before it had confirmed what it had landed", unconfirmed)
	assert.Positive(t, unconfirmed)
	eventually(t, "the outbox is drained", func() bool { return l.rows() == 0 && len(l.made()) >= len(l.committed()) })
	assert.ElementsMatch(t, l.committed(), l.made())
	assert.NotContains(t, l.log.String(), "level=ERROR")
}

// A relay process that lands is stopped, and another one takes over. When it goes on, it lands nothing a second time.
func TestLandingWithTwoRelays(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	ctx := t.Context()
	server := devtest.Postgres(t, devstack.ServerConfig{})
	l, broker := newLanded(t, devtest.PoolOn(t, server.DSN())), newLedger()
	first, stopFirst := l.relay(l.pool, broker)
	leads(t, first)
	second, stopSecond := l.relay(l.pool, broker)
	eventually(t, "it stands by", func() bool { return strings.Contains(l.log.String(), "another relay lands the events: standing by") })
	l.commit("k", idsOf("first ", 10)...)
	l.settled(broker)
	assert.False(t, outbox.LandingStatus(second).Leads)
	stopFirst()
	leads(t, second)
	l.commit("k", idsOf("second ", 10)...)
	l.settled(broker)
	stopSecond()

	processes := newDeliveries(t)
	processes.dsn = server.DSN()
	stopped := processes.relay(l.schema, lands)
	defer kill(stopped)
	reader := func() (pid int) {
		_ = l.pool.QueryRow(ctx, `select active_pid from pg_replication_slots where active`).Scan(&pid)
		return pid
	}
	eventually(t, "the process lands", func() bool { return reader() != 0 })
	before := reader()
	for round := range devtest.Storm(4, 2) {
		ids := idsOf(fmt.Sprint("stopped ", round, " "), 3000)
		l.commit("k", ids...)
		require.NoError(t, stopped.Process.Signal(syscall.SIGSTOP)) // before, while or after it lands
		third, stopThird := l.relay(l.pool, broker)
		leads(t, third)
		require.NotEqual(t, before, reader())
		l.commit("k", idsOf(fmt.Sprint("third ", round, " "), 10)...)
		require.NoError(t, stopped.Process.Signal(syscall.SIGCONT))
		l.commit("k", idsOf(fmt.Sprint("continued ", round, " "), 10)...)
		eventually(t, "all are landed", func() bool { return len(l.made()) >= len(l.committed()) })
		assert.Len(t, l.made(), len(l.committed()), "one row of each")
		stopThird()
		eventually(t, "the process lands again", func() bool { return reader() != 0 })
		before = reader()
	}
	eventually(t, "the outbox is drained", func() bool { return l.rows() == 0 })
	assert.ElementsMatch(t, l.committed(), l.made())
}

// A dump has the marker of another server. Its positions mean nothing here, and nothing was lost.
func TestLandingAfterARestore(t *testing.T) {
	t.Parallel()
	old, other := devtest.Postgres(t, devstack.ServerConfig{}), devtest.Postgres(t, devstack.ServerConfig{})
	from, broker := newLanded(t, devtest.PoolOn(t, old.DSN())), newLedger()
	from.exec(`create table filler as select repeat('x', 1000) as x from generate_series(1, 20000)`) // its WAL is ahead of the other one
	relay, stop := from.relay(from.pool, broker)
	leads(t, relay)
	from.commit("k", "1", "2")
	from.settled(broker)
	stop()
	from.commit("k", "left in the old log")
	dump := output(t, devtest.Tool(t, old, "pg_dump", "--exclude-table=filler", old.DSN()))
	restore := devtest.Tool(t, other, "psql", "--set=ON_ERROR_STOP=1", "--quiet", other.DSN())
	restore.Stdin = bytes.NewReader(dump)
	output(t, restore)

	l, restored := &landed{&cluster{&fixture{t: t, pool: devtest.PoolOn(t, other.DSN()), schema: from.schema, publisher: from.publisher}}, &lockedBuffer{}}, newLedger()
	relay, stop = l.relay(l.pool, restored)
	defer stop()
	leads(t, relay)
	l.commit("k", "3")
	eventually(t, "it is published", func() bool { return restored.count() == 1 })
	assert.Equal(t, []string{"1", "2", "3"}, l.made())
	assert.Zero(t, outbox.LandingStatus(relay).Cuts)

	relay, stop = from.relay(from.pool, broker)
	defer stop()
	leads(t, relay)
	from.settled(broker)
}

// The server crashes after a landing although the role's commits need not be flushed: what was confirmed to the slot was landed.
func TestLandingAfterACrash(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	ctx := t.Context()
	server := devtest.Postgres(t, devstack.ServerConfig{Settings: map[string]string{"synchronous_commit": "off", "wal_writer_delay": "10s"}})
	l, broker := newLanded(t, devtest.PoolOn(t, server.DSN())), newLedger()
	relay, stop := l.relay(devtest.PoolOn(t, server.DSN()), broker)
	defer stop()
	n := 0
	for range devtest.Storm(5, 2) {
		leads(t, relay)
		for range 20 {
			n++
			l.commit("k", idsOf(fmt.Sprint(n, " "), 10)...)
		}
		eventually(t, "some are landed", func() bool { return len(l.made()) > 0 })
		require.NoError(t, server.Crash(ctx))
		require.NoError(t, server.Start(ctx))
		l.pool.Reset()
		l.settled(broker)
	}
	assert.Zero(t, outbox.LandingStatus(relay).Cuts)
}
