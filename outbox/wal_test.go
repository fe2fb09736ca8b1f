package outbox_test

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// logged is a fixture whose relays read the WAL, and nothing else wakes them. Its server is its own: a new slot waits for the transactions of
// the whole server.
func logged(t testing.TB) *fixture {
	return newCluster(t, devtest.PoolOn(t, devtest.Postgres(t, devstack.ServerConfig{}).DSN()), "logged").fixture
}

// slot is the name of the slot that relays read.
func (f *fixture) slot() string { return store.SlotName(f.pool.Config().ConnConfig.Database, f.schema) }

var fromTheWAL = outbox.RelayConfig{Source: outbox.WAL, PollInterval: time.Hour, PollOnly: true, LeaseTTL: 2 * time.Second}

// foreign commits events as a program in another language would: with plain SQL, and telling nobody.
func (f *fixture) foreign(shard int, key string, payloads ...string) {
	_, err := f.pool.Exec(f.t.Context(), `insert into `+f.schema+`.outbox (shard, seq, event_id, topic, key, headers, payload)
		select $1::smallint, `+f.schema+`.outbox_next($1::smallint), gen_random_uuid(), $2, $3, '{}', convert_to(p, 'UTF8') from unnest($4::text[]) p`,
		shard, topic, key, payloads)
	assert.NoError(f.t, err)
}

// answers waits until the WAL answers for all shards.
func answers(t testing.TB, r *outbox.Relay) {
	t.Helper()
	eventually(t, "the WAL answers", func() bool { shards, _ := outbox.WALStatus(r); return shards == 16 })
}

// An event that nobody announces is published at once, in the order of its key: the WAL shows it. Nothing else would: the next poll is in an
// hour. What was rolled back is not published, and keeps nothing else.
func TestWALShowsEventsOfAnyWriter(t *testing.T) {
	t.Parallel()
	f, broker := logged(t), newRecorder()
	relay := f.newRelay(batchRecorder{broker}, fromTheWAL)
	f.run(relay)
	answers(t, relay)
	var want []string
	for i := range 20 {
		payload := strconv.Itoa(i)
		want = append(want, payload)
		_ = pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error { // rolled back
			assert.NoError(t, f.publisher.Publish(topic, newMessage(pgtx.With(t.Context(), tx), "k", "rolled back")))
			return errOops
		})
		f.foreign(int(store.Hash("k", "")%16), "k", payload)
		eventually(t, "it is published", func() bool { return len(broker.of("k")) == i+1 })
	}
	eventually(t, "its rows are deleted", func() bool { return f.rows() == 0 })
	assert.Equal(t, want, broker.of("k"))
	answers(t, relay)
}

// A transaction that waits for a standby is in the WAL, and not yet committed for anybody else: its primary may be lost, and the standby then
// does not have it. Its event is published once it is visible.
func TestWALWaitsForSynchronousStandbys(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := devtest.Postgres(t, devstack.ServerConfig{Settings: map[string]string{"max_replication_slots": "1"}})
	f := newCluster(t, devtest.PoolOn(t, server.DSN()), "standbys")
	exec := func(sql string) {
		_, err := f.pool.Exec(ctx, sql)
		require.NoError(t, err)
	}
	refused := func(pool *pgxpool.Pool) error {
		relay, err := outbox.NewRelay(pool, newRecorder(), outbox.RelayConfig{Schema: f.schema, Source: outbox.WAL})
		require.NoError(t, err)
		return relay.Run(ctx)
	}
	exec(`select pg_create_logical_replication_slot('other', 'pgoutput')`)
	assert.ErrorContains(t, refused(f.pool), "raise max_replication_slots")
	exec(`select pg_drop_replication_slot('other'); create role plain login password 'plain' in role pg_read_all_data, pg_write_all_data`)
	assert.ErrorContains(t, refused(devtest.PoolOn(t, server.DSN(), func(cfg *pgxpool.Config) {
		cfg.ConnConfig.User, cfg.ConnConfig.Password = "plain", "plain"
	})), `run "alter role "plain" replication"`)

	broker := newRecorder()
	relay := f.newRelay(batchRecorder{broker}, fromTheWAL)
	f.run(relay)
	answers(t, relay)
	exec(`alter system set synchronous_standby_names = 'nobody'`)
	exec(`select pg_reload_conf()`)
	eventually(t, "commits wait", func() bool { // the checkpointer makes them
		soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		_, err := f.pool.Exec(soon, `select pg_logical_emit_message(true, 'probe', '')`)
		return err != nil
	})
	var writing sync.WaitGroup
	writing.Go(func() { f.foreign(1, "k", "waits") })
	eventually(t, "the transaction waits for its standby", func() bool {
		var waits bool
		require.NoError(t, f.pool.QueryRow(ctx, `select exists (select from pg_stat_activity where wait_event = 'SyncRep' and query like 'insert%')`).Scan(&waits))
		return waits
	})
	eventually(t, "the stream has shown it", func() bool {
		var shown bool
		require.NoError(t, f.pool.QueryRow(ctx, `select sent_lsn >= pg_current_wal_flush_lsn() from pg_stat_replication`).Scan(&shown))
		return shown
	})
	assert.Never(t, func() bool { return len(broker.of("k")) > 0 }, 200*time.Millisecond, 20*time.Millisecond)
	exec(`alter system reset synchronous_standby_names`)
	exec(`select pg_reload_conf()`)
	writing.Wait()
	eventually(t, "it is published", func() bool { return len(broker.of("k")) == 1 })

	// The server would take the relay for a standby, and report commits that no standby has.
	exec(`alter system set synchronous_standby_names = '*'`)
	exec(`select pg_reload_conf()`)
	eventually(t, "the relay ends its stream", func() bool { shards, _ := outbox.WALStatus(relay); return shards == 0 })
	assert.ErrorContains(t, refused(f.pool), "list the standbys by name")
	exec(`alter system reset synchronous_standby_names`)
	exec(`select pg_reload_conf()`)
	answers(t, relay)
}

// Rows that do not fit into the buffer are read from the table, and then the WAL answers again.
func TestWALGivesWayToTheTable(t *testing.T) {
	t.Parallel()
	f, broker := logged(t), newRecorder()
	relay := f.newRelay(batchRecorder{broker}, fromTheWAL)
	outbox.WithWALBuffer(relay, 20_000)
	f.run(relay)
	answers(t, relay)
	var want []string
	for i := range 2000 {
		want = append(want, strconv.Itoa(i))
	}
	f.foreign(5, "k", want...)
	eventually(t, "all are published", func() bool { return len(broker.of("k")) == len(want) })
	assert.Equal(t, want, broker.of("k"))
	_, spills := outbox.WALStatus(relay)
	assert.Positive(t, spills)
	answers(t, relay)

	// A log that no longer shows rows, and does not say so.
	publication := pgx.Identifier{store.PublicationName(f.schema)}.Sanitize()
	exec := func(sql string) {
		_, err := f.pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	exec(`alter publication ` + publication + ` drop table ` + f.schema + `.outbox`)
	f.foreign(5, "other", "1")
	eventually(t, "it is published", func() bool { return len(broker.of("other")) == 1 })
	exec(`alter publication ` + publication + ` add table ` + f.schema + `.outbox`)
	answers(t, relay)
}

// One relay forwards the events of all shards while the other one stands by, and takes over when the first one ends.
func TestWALHasOneReader(t *testing.T) {
	t.Parallel()
	f, first, second := logged(t), newRecorder(), newRecorder()
	relay := f.newRelay(batchRecorder{first}, fromTheWAL)
	stop := f.run(relay)
	answers(t, relay)
	standby := f.newRelay(batchRecorder{second}, fromTheWAL)
	f.run(standby)
	<-standby.Running()
	f.foreign(1, "k", "1")
	eventually(t, "the first one publishes", func() bool { return first.count() == 1 })
	assert.Equal(t, []int{16}, f.holders())
	stop()
	answers(t, standby)
	f.foreign(1, "k", "2")
	eventually(t, "the second one publishes", func() bool { return second.count() == 1 })
}

// A relay whose publisher fails leaves the WAL to one that stands by.
func TestWALIsLeftToARelayThatPublishes(t *testing.T) {
	t.Parallel()
	f, first, second := logged(t), &failing{batchRecorder: batchRecorder{newRecorder()}}, newRecorder()
	expired := fmt.Errorf("%w: the credentials have expired", transport.ErrUnavailable)
	first.err.Store(&expired)
	relay := f.newRelay(first, fromTheWAL)
	f.run(relay)
	answers(t, relay)
	f.run(f.newRelay(batchRecorder{second}, fromTheWAL))
	f.foreign(1, "k", "1")
	eventually(t, "the other one publishes", func() bool { return second.count() == 1 })
}

// Two relay processes read the WAL in turn while writers write: the one that reads is killed and stopped beyond its lease; the slot is dropped
// and invalidated, and a relay tells that it reads rows. Nothing is lost, nothing else is sent, and no event is overtaken by a later one of its
// key. Afterwards a relay reads the WAL again.
func TestWALStorm(t *testing.T) {
	t.Parallel()
	server := devtest.Postgres(t, devstack.ServerConfig{Settings: map[string]string{"max_slot_wal_keep_size": "2MB"}})
	f := newCluster(t, devtest.PoolOn(t, server.DSN()), "wal_storm").fixture
	f.aggregateTables()
	broker := newDeliveries(t)
	broker.dsn = server.DSN()
	relays := []*exec.Cmd{broker.relay(f.schema, fromWAL), broker.relay(f.schema, fromWAL)}
	defer func() {
		for _, r := range relays {
			kill(r)
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() {
		f.write(ctx, func(ctx context.Context, tx pgx.Tx, key, payload string) error {
			return f.publisher.Publish(topic, newMessage(pgtx.With(ctx, tx), key, payload))
		})
	})
	stop := sync.OnceFunc(func() { cancel(); writing.Wait() })
	defer stop()

	exec := func(sql string, args ...any) {
		_, err := f.pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	// leads waits until a relay reads the WAL for a while and events are published, and returns its place.
	leads := func() (i int) {
		n := len(broker.all())
		eventually(t, "a relay reads the WAL", func() bool {
			_, reader, err := f.slotReader()
			require.NoError(t, err)
			if len(broker.all()) < n+100 {
				return false
			}
			for at, r := range relays {
				if r.Process.Pid == reader {
					i = at
					return true
				}
			}
			return false
		})
		return i
	}

	i := leads()
	kill(relays[i])
	eventually(t, "the standby takes over", func() bool { return leads() == 1-i }) // what the other one has sent may come first
	relays[i] = broker.relay(f.schema, fromWAL)

	i = leads()
	require.NoError(t, relays[i].Process.Signal(syscall.SIGSTOP))
	eventually(t, "the standby takes over from one that is stopped", func() bool { return leads() == 1-i })
	require.NoError(t, relays[i].Process.Signal(syscall.SIGCONT))

	tells := func(relay, told int) {
		t.Helper()
		eventually(t, "the relay tells that it reads rows", func() bool { return broker.fallbacks(relay) > told })
	}
	leads()
	relay, told, err := f.dropSlot(broker)
	require.NoError(t, err)
	tells(relay, told)

	i = leads()
	told = broker.fallbacks(relays[i].Process.Pid)
	require.NoError(t, relays[1-i].Process.Signal(syscall.SIGSTOP))
	require.NoError(t, relays[i].Process.Signal(syscall.SIGSTOP))
	eventually(t, "the slot is invalidated", func() bool {
		exec(`select pg_switch_wal()`)
		exec(`checkpoint`)
		var lost bool
		require.NoError(t, f.pool.QueryRow(t.Context(), `select exists (select from pg_replication_slots where slot_name = $1 and wal_status = 'lost')`, f.slot()).Scan(&lost))
		return lost
	})
	for _, r := range relays {
		require.NoError(t, r.Process.Signal(syscall.SIGCONT))
	}
	leads()
	tells(relays[i].Process.Pid, told)

	stop()
	eventually(t, "the outbox is drained", func() bool { return f.rows() == 0 })
	c := f.count(broker)
	t.Logf("%+v", c)
	assert.Zero(t, c.lost)
	assert.Zero(t, c.inversions, "overtaken events")
}
