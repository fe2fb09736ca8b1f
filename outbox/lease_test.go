package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/millrace-go/millrace/outbox"
)

// holders returns how many shards each living relay holds.
func (f *fixture) holders() []int {
	rows, err := f.pool.Query(context.Background(), `select count(*) from `+f.schema+`.outbox_shard
		where expires_at > now() group by relay_id order by 1`)
	require.NoError(f.t, err)
	counts, err := pgx.CollectRows(rows, pgx.RowTo[int])
	require.NoError(f.t, err)
	return counts
}

func TestRelaysShareTheShards(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	cfg := outbox.RelayConfig{}
	held := func(want ...int) func() bool {
		return func() bool { return assert.ObjectsAreEqual(want, f.holders()) }
	}
	stopFirst := f.run(f.newRelay(newRecorder(), cfg))
	eventually(t, "one relay holds all", held(16))
	f.run(f.newRelay(newRecorder(), cfg))
	eventually(t, "two share", held(8, 8))
	stopThird := f.run(f.newRelay(newRecorder(), cfg))
	eventually(t, "three share", held(4, 6, 6))
	stopThird()
	eventually(t, "two share again", held(8, 8))
	stopFirst()
	eventually(t, "one holds all again", held(16))
}

// A relay that was killed leaves its leases behind, and they expire by the server's clock.
func TestLeasesOfADeadRelayExpire(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	f.publish("k", "p")
	var expires time.Time
	require.NoError(t, f.pool.QueryRow(t.Context(), `update `+f.schema+`.outbox_shard set relay_id = $1, expires_at = now() + interval '2 seconds'
		returning expires_at`, uuid.New()).Scan(&expires))
	f.run(f.newRelay(broker, outbox.RelayConfig{}))
	eventually(t, "taken over", func() bool { return broker.count() == 1 })
	var expired bool
	require.NoError(t, f.pool.QueryRow(t.Context(), `select clock_timestamp() >= $1`, expires).Scan(&expired))
	assert.True(t, expired, "not before")
}

// Another relay took the shards, for instance while this one was stopped: it must let go of them.
func TestLostLeaseIsNoticed(t *testing.T) {
	t.Parallel()
	f, broker, reader := newFixture(t), newRecorder(), metric.NewManualReader()
	f.run(f.newRelay(broker, outbox.RelayConfig{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))}))
	eventually(t, "it holds all", func() bool { return assert.ObjectsAreEqual([]int{16}, f.holders()) })
	_, err := f.pool.Exec(t.Context(), `update `+f.schema+`.outbox_shard set relay_id = $1, expires_at = now() + interval '1 hour'`, uuid.New())
	require.NoError(t, err)
	held := func() (n int) {
		// The thief has no row among the relays, so what is still renewed would be back with the first one.
		require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*) from `+f.schema+`.outbox_shard where expires_at < now() + interval '1 minute'`).Scan(&n))
		return n
	}
	require.Never(t, func() bool { return held() > 0 }, 3*time.Second, 50*time.Millisecond)
	eventually(t, "it knows", func() bool { n, ok := figures(t, reader)["millrace.outbox.shards"]; return ok && n == 0 })
	f.publish("k", "not ours any more")
	require.Never(t, func() bool { return broker.count() > 0 }, 500*time.Millisecond, 50*time.Millisecond)
}

// What is in flight when Run is asked to end gets its time, and its rows are deleted.
func TestDrain(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	broker.hold = make(chan struct{})
	f.publish("k", "in flight")
	stop := f.run(f.newRelay(broker, outbox.RelayConfig{}))
	<-broker.waiting
	time.AfterFunc(300*time.Millisecond, func() { close(broker.hold) })
	stop()
	assert.Equal(t, []string{"in flight"}, broker.of("k"))
	assert.Zero(t, f.rows())
	assert.Empty(t, f.holders(), "the shards were given back")
}

// The database goes away under a relay: what it could not delete is published again, and nothing else goes wrong.
func TestConnectionsLost(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	cfg := f.pool.Config()
	cfg.ConnConfig.RuntimeParams["application_name"] = f.schema // other tests' connections stay
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer pool.Close()
	broker.hold = make(chan struct{})
	f.publish("k", "1")
	relay, err := outbox.NewRelay(pool, broker, outbox.RelayConfig{Schema: f.schema})
	require.NoError(t, err)
	defer f.run(relay)()
	<-broker.waiting
	var killed int
	require.NoError(t, f.pool.QueryRow(t.Context(), `select count(pg_terminate_backend(pid)) from pg_stat_activity
		where application_name = $1`, f.schema).Scan(&killed))
	require.Positive(t, killed)
	close(broker.hold)
	eventually(t, "the row goes", func() bool { return f.rows() == 0 })
	f.publish("k", "2")
	eventually(t, "and work goes on", func() bool { return f.rows() == 0 })
	got := broker.of("k")
	assert.Equal(t, "2", got[len(got)-1])
	assert.LessOrEqual(t, len(got), 3)
}
