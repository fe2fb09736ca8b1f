package outbox_test

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"sync"
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

// The primary is lost under writers, and they and the relay go on at its standby. If the standby synchronizes the slot, the relay reads the WAL from
// there; otherwise it makes another slot. Nothing committed is lost, nothing else is sent, and no event is overtaken by a later one of its
// key. PostgreSQL has failover slots from version 17 on.
func TestFailoverOfTheSlot(t *testing.T) {
	t.Parallel()
	for name, synchronizes := range map[string]bool{"synchronized": true, "not synchronized": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testFailoverOfTheSlot(t, synchronizes)
		})
	}
}

func testFailoverOfTheSlot(t *testing.T, synchronizes bool) {
	ctx := t.Context()
	primary := devtest.Postgres(t, devstack.ServerConfig{Release: devstack.NewestPostgres})
	f := newCluster(t, devtest.PoolOn(t, primary.DSN()), "slot").fixture
	f.aggregateTables()
	standby, dsn := awaitedStandby(t, primary, f.pool, synchronizes)
	if !synchronizes {
		dsn.RawQuery += "&target_session_attrs=read-write"
	}
	f.pool = devtest.PoolOn(t, dsn.String())
	broker, log := newDeliveries(t), &lockedBuffer{}
	cfg := fromTheWAL
	cfg.Schema, cfg.Logger = f.schema, slog.New(slog.NewTextHandler(log, nil))
	relays := devtest.PoolOn(t, dsn.String(), func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["application_name"] = "the relay" })
	relay, err := outbox.NewRelay(relays, pipe{file: broker.to}, cfg)
	require.NoError(t, err)
	f.run(relay)
	answers(t, relay)

	replica := devtest.PoolOn(t, standby.DSN())
	slot := func() (exists, synced bool) {
		err := replica.QueryRow(ctx, `select true, synced from pg_replication_slots where slot_name = $1 and not temporary`, f.slot()).Scan(&exists, &synced)
		if err != nil {
			require.ErrorIs(t, err, pgx.ErrNoRows)
		}
		return exists, synced
	}
	if synchronizes {
		eventually(t, "the standby has the slot", func() bool {
			_, err := f.pool.Exec(ctx, `select pg_log_standby_snapshot()`)
			require.NoError(t, err)
			exists, _ := slot()
			return exists
		})
	}
	stop := f.writeOn()
	defer stop()
	published := func(more int) {
		t.Helper()
		n := len(broker.all())
		eventually(t, "events are published", func() bool { return len(broker.all()) > n+more })
	}
	published(500)
	exists, _ := slot()
	require.Equal(t, synchronizes, exists)
	require.NoError(t, primary.Crash(ctx))
	if synchronizes { // and the relay meets the standby before it is promoted
		eventually(t, "the relay asks the standby", func() (asks bool) {
			require.NoError(t, replica.QueryRow(ctx, `select exists (select from pg_stat_activity where application_name = 'the relay' and query <> '')`).Scan(&asks))
			return asks
		})
	}
	require.NoError(t, standby.Promote(ctx))
	f.pool.Reset()
	relays.Reset()
	published(500)
	answers(t, relay)
	published(500)
	stop()
	eventually(t, "the outbox is drained", func() bool { return f.rows() == 0 })

	exists, synced := slot()
	assert.True(t, exists)
	assert.Equal(t, synchronizes, synced, "the relay reads the slot that the standby has synchronized")
	assert.Contains(t, log.String(), "the WAL cannot be read: reading rows meanwhile")
	// It may have begun to read at the standby, where the promotion then ended the stream.
	assert.Contains(t, []int{2, 3}, strings.Count(log.String(), `msg="reading the WAL"`), log.String())
	c := f.count(broker)
	t.Logf("%+v", c)
	assert.Zero(t, c.lost)
	assert.Zero(t, c.inversions, "overtaken events")
}

// awaitedStandby starts a standby of the primary, whose commits and slots wait for it, and returns the DSN of both servers.
func awaitedStandby(t *testing.T, primary *devstack.Server, pool *pgxpool.Pool, synchronizes bool) (standby *devstack.Server, both *url.URL) {
	t.Helper()
	exec := func(statements ...string) {
		for _, s := range statements {
			_, err := pool.Exec(t.Context(), s)
			require.NoError(t, err, s)
		}
	}
	exec(`select pg_create_physical_replication_slot('standby')`)
	standby = devtest.Standby(t, primary, devstack.ServerConfig{Settings: map[string]string{
		"primary_slot_name": "standby", "hot_standby_feedback": "on", "sync_replication_slots": strconv.FormatBool(synchronizes),
	}})
	exec(`alter system set synchronous_standby_names = 'walreceiver'`, `alter system set synchronized_standby_slots = 'standby'`, `select pg_reload_conf()`)
	both, err := url.Parse(primary.DSN())
	require.NoError(t, err)
	both.Host = primary.Address() + "," + standby.Address()
	return standby, both
}

// A standby that must have the WAL before the relay gets it is away: the relay reads rows, until the standby is back or is not waited for.
func TestWALBehindAnAbsentStandby(t *testing.T) {
	t.Parallel()
	server := devtest.Postgres(t, devstack.ServerConfig{Release: devstack.NewestPostgres})
	f, broker := newCluster(t, devtest.PoolOn(t, server.DSN()), "away").fixture, newRecorder()
	relay := f.newRelay(batchRecorder{broker}, fromTheWAL)
	f.run(relay)
	answers(t, relay)
	set := func(statement string) {
		for _, s := range []string{statement, `select pg_reload_conf()`} {
			_, err := f.pool.Exec(t.Context(), s)
			require.NoError(t, err)
		}
	}
	set(`alter system set synchronized_standby_slots = 'away'`)
	waits := func() (waits bool) {
		require.NoError(t, f.pool.QueryRow(t.Context(), `select exists (select from pg_stat_activity where wait_event = 'WaitForStandbyConfirmation')`).Scan(&waits))
		return waits
	}
	n := 0
	eventually(t, "the WAL waits", func() bool {
		n++
		f.foreign(5, "k", strconv.Itoa(n))
		return waits()
	})
	eventually(t, "all are published", func() bool { return len(broker.of("k")) == n })
	require.True(t, waits())
	set(`alter system reset synchronized_standby_slots`)
	answers(t, relay)
}

// writeOn runs writers that go on after errors, until stop is called.
func (f *fixture) writeOn() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	for w := range writers / 4 {
		writing.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for ctx.Err() == nil {
				_ = pgtx.Run(context.Background(), f.pool, func(ctx context.Context, tx pgx.Tx) error { // the table of aggregates tells what was committed
					var n int
					key := random.IntN(aggregates)
					if err := tx.QueryRow(ctx, `update `+f.schema+`.aggregate set n = n + 1 where id = $1 returning n`, key).Scan(&n); err != nil {
						return err
					}
					return f.publisher.Publish(topic, newMessage(ctx, strconv.Itoa(key), strconv.Itoa(n)))
				})
			}
		})
	}
	return sync.OnceFunc(func() { cancel(); writing.Wait() })
}

// lockedBuffer is a buffer that is safe for concurrent use.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
