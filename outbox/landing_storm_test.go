package outbox_test

import (
	"context"
	"math/rand/v2"
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
	"github.com/millrace-go/millrace/outbox/internal/entry"
)

// emitNext puts the next event of a random key into the WAL. The table of aggregates tells what was committed.
func (l *landed) emitNext(ctx context.Context, random *rand.Rand) error {
	return pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		var n int
		key := strconv.Itoa(random.IntN(aggregates))
		if err := tx.QueryRow(ctx, `update landing.aggregate set n = n + 1 where id = $1 returning n`, key).Scan(&n); err != nil {
			return err
		}
		e := entry.Entry{ID: key + "/" + strconv.Itoa(n), Topic: topic, Key: key, Headers: []byte("{}"), Payload: []byte(strconv.Itoa(n))}
		if _, err := tx.Exec(ctx, `select pg_logical_emit_message(true, $1, $2::bytea)`, entry.Prefix("landing"), e.Encode()); err != nil {
			return err
		}
		if random.IntN(20) == 0 {
			return errOops
		}
		return nil
	})
}

// emitOn runs writers that go on after errors, until stop is called.
func (l *landed) emitOn() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	for w := range writers / 4 {
		writing.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for ctx.Err() == nil {
				_ = l.emitNext(context.Background(), random)
			}
		})
	}
	return sync.OnceFunc(func() { cancel(); writing.Wait() })
}

// drainedTo waits until everything is landed and published, and returns what is lost, and how many events became more than one row.
func (l *landed) drainedTo(broker *deliveries) (c tally, doubled int) {
	l.t.Helper()
	eventually(l.t, "all is published", func() bool { return l.count(broker).lost == 0 && l.rows() == 0 })
	require.NoError(l.t, l.pool.QueryRow(context.Background(), `select count(*) - count(distinct event_id) from landing.row`).Scan(&doubled))
	c = l.count(broker)
	assert.Len(l.t, l.made(), c.committed, "one row of each event")
	l.t.Logf("%+v", c)
	return c, doubled
}

// Two relay processes land and publish events in a storm of faults: relays are killed and stopped, connections end, the server crashes. Nothing
// committed is lost or doubled, nothing else is sent, and no event is overtaken by a later one of its key.
func TestLandingStorm(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	ctx := t.Context()
	server := devtest.Postgres(t, devstack.ServerConfig{})
	l := newLanded(t, devtest.PoolOn(t, server.DSN()))
	l.aggregateTables()
	broker := newDeliveries(t)
	broker.dsn = server.DSN()
	relays := []*exec.Cmd{broker.relay(l.schema, lands), broker.relay(l.schema, lands)}
	defer func() {
		for _, r := range relays {
			kill(r)
		}
	}()
	l.awaitSlot()
	stop := l.emitOn()
	defer stop()
	published := func(more int) {
		t.Helper()
		n := len(broker.all())
		eventually(t, "events are published", func() bool { return len(broker.all()) > n+more })
	}
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	faults := []func(){
		func() {
			i := random.IntN(2)
			kill(relays[i])
			relays[i] = broker.relay(l.schema, lands)
		},
		func() {
			i := random.IntN(2)
			require.NoError(t, relays[i].Process.Signal(syscall.SIGSTOP))
			between(random, time.Second, 8*time.Second)
			require.NoError(t, relays[i].Process.Signal(syscall.SIGCONT))
		},
		func() {
			for range 5 {
				_, err := l.pool.Exec(ctx, `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'landing' or application_name like 'millrace-relay-%'`)
				require.NoError(t, err)
				between(random, 10*time.Millisecond, 300*time.Millisecond)
			}
		},
		func() {
			require.NoError(t, server.Crash(ctx))
			require.NoError(t, server.Start(ctx))
			l.pool.Reset()
			eventually(t, "the server answers", func() bool { return l.pool.Ping(ctx) == nil })
		},
	}
	for range devtest.Storm(4, 1) {
		random.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		for _, strike := range faults {
			strike()
			published(200)
		}
	}
	stop()
	c, doubled := l.drainedTo(broker)
	assert.Zero(t, c.lost)
	assert.Zero(t, doubled)
	assert.Zero(t, c.inversions, "overtaken events")
	var cuts int
	require.NoError(t, l.pool.QueryRow(ctx, `select cuts from landing.outbox_landing`).Scan(&cuts))
	assert.Zero(t, cuts)
}

// The primary is lost under writers. If the standby synchronizes the slot, and the primary waits for that, nothing committed is lost or
// doubled. Otherwise events may be lost, and the relay says so. PostgreSQL has failover slots from version 17 on.
func TestLandingAtAFailover(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	for name, synchronizes := range map[string]bool{"synchronized": true, "not synchronized": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testLandingAtAFailover(t, synchronizes)
		})
	}
}

func testLandingAtAFailover(t *testing.T, synchronizes bool) {
	ctx := t.Context()
	primary := devtest.Postgres(t, devstack.ServerConfig{Release: devstack.NewestPostgres})
	l := newLanded(t, devtest.PoolOn(t, primary.DSN()))
	l.aggregateTables()
	standby, dsn := awaitedStandby(t, primary, l.pool, synchronizes)
	dsn.RawQuery += "&target_session_attrs=read-write"
	l.pool = devtest.PoolOn(t, dsn.String(), func(cfg *pgxpool.Config) { cfg.ConnConfig.ConnectTimeout = 2 * time.Second })
	broker := newDeliveries(t)
	relays := devtest.PoolOn(t, dsn.String())
	relay, err := outbox.NewRelay(relays, pipe{file: broker.to}, l.cfg())
	require.NoError(t, err)
	defer l.run(relay)()
	leads(t, relay)
	replica := devtest.PoolOn(t, standby.DSN())
	if synchronizes {
		eventually(t, "the standby has the slot", func() (exists bool) {
			l.exec(`select pg_log_standby_snapshot()`)
			require.NoError(t, replica.QueryRow(ctx, `select exists (select from pg_replication_slots where slot_name = (select slot from landing.outbox_landing) and not temporary)`).Scan(&exists))
			return exists
		})
	}
	stop := l.emitOn()
	defer stop()
	published := func(more int) {
		t.Helper()
		n := len(broker.all())
		eventually(t, "events are published", func() bool { return len(broker.all()) > n+more })
	}
	published(500)
	require.NoError(t, primary.Crash(ctx))
	require.NoError(t, standby.Promote(ctx))
	l.pool.Reset()
	relays.Reset()
	published(500)
	stop()
	var cuts int
	require.NoError(t, l.pool.QueryRow(ctx, `select cuts from landing.outbox_landing`).Scan(&cuts))
	if !synchronizes {
		assert.Equal(t, 1, cuts, "events may be lost, and it says so")
		assert.EqualValues(t, 1, outbox.LandingStatus(relay).Cuts)
		return
	}
	c, doubled := l.drainedTo(broker)
	assert.Zero(t, cuts)
	assert.Zero(t, c.lost)
	assert.Zero(t, doubled)
	assert.Zero(t, c.inversions, "overtaken events")
}
