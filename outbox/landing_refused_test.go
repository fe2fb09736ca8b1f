package outbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/internal/entry"
	"github.com/millrace-go/millrace/pgtx"
)

// A message that is no event, or whose row the table refuses, is a dead event. It holds up nothing.
func TestLandingRefusesWhatIsNoEvent(t *testing.T) {
	t.Parallel()
	l, broker := newLanded(t, devtest.PoolOn(t, devtest.Postgres(t, devstack.ServerConfig{}).DSN())), newLedger()
	l.exec(`alter table landing.outbox add constraint not_this check (topic <> 'refused')`)
	relay, stop := l.relay(l.pool, broker)
	leads(t, relay)
	stop() // so that all are in one part
	emit := func(content []byte) {
		_, err := l.pool.Exec(t.Context(), `select pg_logical_emit_message(true, $1, $2::bytea)`, entry.Prefix("landing"), content)
		require.NoError(t, err)
	}
	l.commit("k", idsOf("before ", 10)...)
	emit([]byte("garbage"))
	emit([]byte{})
	emit(entry.Entry{ID: strings.Repeat("i", 256), Topic: topic}.Encode())
	emit(entry.Entry{ID: "bad key", Topic: topic, Key: "\xff"}.Encode())
	emit(entry.Entry{ID: "bad topic", Topic: "a\x00b"}.Encode())
	l.commit("k", "between")
	emit(entry.Entry{ID: "refused", Topic: "refused", Key: "k", Payload: []byte("p")}.Encode())
	l.commit("k", idsOf("after ", 10)...)
	relay, stop = l.relay(l.pool, broker)
	defer stop()
	eventually(t, "the others are published", func() bool { return broker.count() == 21 })
	assert.Equal(t, append(append(idsOf("before ", 10), "between"), idsOf("after ", 10)...), l.made())
	rows, err := l.pool.Query(t.Context(), `select event_id || ': ' || reason from landing.outbox_failed where state = 'dead' and topic = '' and key = '' order by id`)
	require.NoError(t, err)
	dead, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Len(t, dead, 6)
	for i, want := range []string{"version 103", "cut off", "the ID has 256 bytes", "bad key: a message in the WAL (topic " + topic + ") is not a valid event: the key has a NUL byte or invalid UTF-8", "bad topic", "not_this"} {
		assert.Contains(t, dead[i], want)
	}
	var raw []byte
	require.NoError(t, l.pool.QueryRow(t.Context(), `select payload from landing.outbox_failed where reason like '%not_this%'`).Scan(&raw))
	e, err := entry.Decode(raw)
	require.NoError(t, err)
	assert.Equal(t, "refused", e.ID, "nothing of it is lost")
	assert.EqualValues(t, 21, outbox.LandingStatus(relay).Events)
	assert.Contains(t, l.log.String(), "a message in the WAL is not a valid event: it was stored as a dead event")
}

// What the WAL had when its slot was lost is lost. The relay says so, and goes on with another slot.
func TestLandingReportsALostSlot(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	for name, lose := range map[string]func(l *landed){
		"dropped": func(l *landed) { l.exec(`select pg_drop_replication_slot(slot) from landing.outbox_landing`) },
		"advanced": func(l *landed) {
			l.exec(`select pg_replication_slot_advance(slot, pg_current_wal_flush_lsn()) from landing.outbox_landing`)
		},
		"invalidated": func(l *landed) {
			l.exec(`alter system set max_slot_wal_keep_size = '1MB'`, `select pg_reload_conf()`)
			eventually(l.t, "the slot is invalidated", func() (lost bool) {
				l.exec(`create table filler as select repeat('x', 1000) as x from generate_series(1, 1000)`, `drop table filler`, `select pg_switch_wal()`, `checkpoint`)
				require.NoError(l.t, l.pool.QueryRow(context.Background(), `select wal_status = 'lost' from pg_replication_slots`).Scan(&lost))
				return lost
			})
			l.exec(`alter system reset max_slot_wal_keep_size`, `select pg_reload_conf()`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, broker := newLanded(t, devtest.PoolOn(t, devtest.Postgres(t, devstack.ServerConfig{}).DSN())), newLedger()
			relay, stop := l.relay(l.pool, broker)
			leads(t, relay)
			l.commit("k", "1", "2")
			l.settled(broker)
			stop()
			eventually(t, "its connection ends", func() (free bool) {
				require.NoError(t, l.pool.QueryRow(t.Context(), `select not active from pg_replication_slots`).Scan(&free))
				return free
			})
			l.commit("k", "lost")
			lose(l)
			relay, stop = l.relay(l.pool, broker)
			leads(t, relay)
			l.commit("k", "3")
			eventually(t, "it is published", func() bool { return broker.count() == 3 })
			assert.Equal(t, []string{"1", "2", "3"}, l.made())
			assert.EqualValues(t, 1, outbox.LandingStatus(relay).Cuts)
			assert.Contains(t, l.log.String(), "WAL was lost before")
			cut := func() (cuts int, within bool, reason string) {
				require.NoError(t, l.pool.QueryRow(t.Context(), `select cuts, cut_from < cut_to and cut_to <= landed and cut_at > now() - interval '5 minutes', cut_reason from landing.outbox_landing`).Scan(&cuts, &within, &reason))
				return cuts, within, reason
			}
			cuts, within, reason := cut()
			assert.Equal(t, 1, cuts)
			assert.True(t, within)
			assert.Contains(t, reason, name)
			stop()
			relay, stop = l.relay(l.pool, broker)
			defer stop()
			leads(t, relay)
			l.commit("k", "4")
			eventually(t, "it is published", func() bool { return broker.count() == 4 })
			cuts, _, _ = cut()
			assert.Equal(t, 1, cuts, "it is told once")
		})
	}
}

// A relay that loses its slot makes no other one while the server may remove the slot's WAL. So publishers are refused, and no more events are lost.
func TestLandingMakesNoSlotThatIsNotSafe(t *testing.T) {
	t.Parallel()
	l, broker := newLanded(t, devtest.PoolOn(t, devtest.Postgres(t, devstack.ServerConfig{}).DSN())), newLedger()
	l.publisher = l.intoTheLog()
	publish := func() error {
		return pgtx.Run(t.Context(), l.pool, func(ctx context.Context, _ pgx.Tx) error {
			return l.publisher.Publish(topic, newMessage(ctx, "k", "1"))
		})
	}
	relay, stop := l.relay(l.pool, broker)
	defer stop()
	leads(t, relay)
	l.exec(`alter system set max_slot_wal_keep_size = '1GB'`, `select pg_reload_conf()`)
	eventually(t, "the slot is dropped", func() bool {
		l.exec(`select pg_terminate_backend(active_pid, 10000) from pg_replication_slots where active`)
		_, err := l.pool.Exec(t.Context(), `select pg_drop_replication_slot(slot_name) from pg_replication_slots`)
		return err == nil
	})
	eventually(t, "the relay says why it makes no slot", func() bool {
		return strings.Contains(l.log.String(), "cannot land events") && strings.Contains(l.log.String(), "max_slot_wal_keep_size")
	})
	require.ErrorIs(t, publish(), outbox.ErrNoLog)
	assert.EqualValues(t, 1, outbox.LandingStatus(relay).Cuts)
	l.exec(`alter system reset max_slot_wal_keep_size`, `select pg_reload_conf()`)
	leads(t, relay)
	require.NoError(t, publish())
	eventually(t, "it is published", func() bool { return broker.count() == 1 })
	assert.EqualValues(t, 1, outbox.LandingStatus(relay).Cuts)
}

// Somebody advances the slot to a place before the end of a transaction of which a part is landed. That part is not landed again.
func TestLandingGoesOnWithinATransactionAfterACut(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	ctx := t.Context()
	l, broker := newLanded(t, devtest.PoolOn(t, devtest.Postgres(t, devstack.ServerConfig{}).DSN())), newLedger()
	relay, stop := l.relay(l.pool, broker)
	leads(t, relay)
	is := func(condition string) func() bool {
		return func() (yes bool) {
			require.NoError(t, l.pool.QueryRow(context.Background(), `select `+condition).Scan(&yes))
			return yes
		}
	}
	// The second part waits for a lock.
	l.exec(`create function landing.hold() returns trigger language plpgsql as $$ begin
			if new.event_id::int >= 5000 then perform pg_advisory_xact_lock_shared(7); end if;
			return new;
		end $$;
		create trigger hold before insert on landing.outbox for each row execute function landing.hold()`)
	holder, err := l.pool.Acquire(ctx)
	require.NoError(t, err)
	defer holder.Release()
	_, err = holder.Exec(ctx, `select pg_advisory_lock(7)`)
	require.NoError(t, err)
	l.commit("k", idsOf("", 7000)...)
	const waits = `exists (select from pg_locks where locktype = 'advisory' and not granted)`
	eventually(t, "the second part waits", is(waits))
	stop()
	eventually(t, "it has ended", is(`not `+waits))
	eventually(t, "so has its connection", is(`not active from pg_replication_slots`))
	_, err = holder.Exec(ctx, `select pg_advisory_unlock(7)`)
	require.NoError(t, err)
	assert.Len(t, l.made(), 5000)
	l.exec(`select pg_replication_slot_advance(slot, part_of - 8) from landing.outbox_landing`)
	assert.True(t, is(`confirmed_flush_lsn > landed and confirmed_flush_lsn < part_of from pg_replication_slots join landing.outbox_landing on slot_name = slot`)())

	relay, stop = l.relay(l.pool, broker)
	defer stop()
	leads(t, relay)
	l.settled(broker)
	assert.EqualValues(t, 1, outbox.LandingStatus(relay).Cuts)
}

// PostgreSQL before version 18 cannot read the WAL from before a publication was created again. The relay says what to do, and does it not by
// itself: events are lost with the slot.
func TestLandingWithoutItsPublication(t *testing.T) {
	t.Parallel()
	l, broker := newLanded(t, devtest.PoolOn(t, devtest.Postgres(t, devstack.ServerConfig{}).DSN())), newLedger()
	relay, stop := l.relay(l.pool, broker)
	leads(t, relay)
	l.commit("k", "1")
	l.settled(broker)
	stop()
	l.exec(`drop publication landing_outbox_landing`)
	l.commit("k", "2")
	relay, stop = l.relay(l.pool, broker)
	defer stop()
	told := func() bool {
		return strings.Contains(l.log.String(), "the publication landing_outbox_landing was dropped")
	}
	eventually(t, "the event is published, or the reason is told", func() bool { return broker.count() == 2 || told() })
	if told() {
		eventually(t, "the slot is dropped", func() bool {
			_, err := l.pool.Exec(t.Context(), `select pg_drop_replication_slot(slot) from landing.outbox_landing`)
			return err == nil
		})
		eventually(t, "it goes on", func() bool { return outbox.LandingStatus(relay).Cuts == 1 })
	}
	leads(t, relay)
	l.commit("k", "3")
	eventually(t, "it is published", func() bool { missing, _ := broker.compare([]string{"3"}); return len(missing) == 0 })
}

// Where WAL could be lost silently, or cannot be read, a relay does not start.
func TestLandingIsRefused(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	refused := func(t *testing.T, pool *pgxpool.Pool, schema, why string) {
		t.Helper()
		relay, err := outbox.NewRelay(pool, newLedger(), outbox.RelayConfig{Schema: schema, Store: outbox.Log})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = relay.Run(ctx)
		require.ErrorContains(t, err, "RelayConfig.Store is Log: ")
		assert.ErrorContains(t, err, why)
	}
	for setting, c := range map[string]struct{ value, why string }{
		"max_slot_wal_keep_size":        {"1GB", `run "alter system set max_slot_wal_keep_size = -1"`},
		"idle_replication_slot_timeout": {"60", `run "alter system set idle_replication_slot_timeout = 0"`},
		"wal_level":                     {"replica", `run "alter system set wal_level = logical"`},
		"max_replication_slots":         {"0", "raise max_replication_slots"},
		"synchronous_standby_names":     {"*", "list the standbys by name"},
	} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			settings := map[string]string{setting: c.value, "synchronous_commit": "local"}
			server := devtest.Postgres(t, devstack.ServerConfig{Release: devstack.NewestPostgres, Settings: settings})
			f := newCluster(t, devtest.PoolOn(t, server.DSN()), "refused")
			refused(t, f.pool, f.schema, c.why)
		})
	}
	t.Run("role and slot", func(t *testing.T) {
		t.Parallel()
		server := devtest.Postgres(t, devstack.ServerConfig{})
		l, broker := newLanded(t, devtest.PoolOn(t, server.DSN())), newLedger()
		l.exec(`create role plain login password 'plain' in role pg_read_all_data, pg_write_all_data`)
		refused(t, devtest.PoolOn(t, server.DSN(), func(cfg *pgxpool.Config) { cfg.ConnConfig.User, cfg.ConnConfig.Password = "plain", "plain" }), l.schema, `run "alter role "plain" replication"`)
		holder, err := pgx.Connect(t.Context(), server.DSN())
		require.NoError(t, err)
		_, err = holder.Exec(t.Context(), `select pg_create_logical_replication_slot('landing_log_' || oid, 'pgoutput', true) from pg_database where datname = current_database()`)
		require.NoError(t, err)
		relay, stop := l.relay(l.pool, broker)
		defer stop()
		eventually(t, "it is told", func() bool { return strings.Contains(l.log.String(), "cannot land events") })
		require.NoError(t, holder.Close(t.Context()))
		leads(t, relay)
	})
}
