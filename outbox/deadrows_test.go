package outbox_test

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/store"
)

// While another session holds a snapshot, the rows of published events stay in the table and its index. What walks them all,
// the rescan, runs beside the reads and is seldom: no event waits for it.
func TestDeadRowsDelayNoEvent(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	f, broker := newFixture(t), newRecorder()
	snapshot, err := f.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer snapshot.Rollback(context.Background())
	_, err = snapshot.Exec(t.Context(), `select 1`)
	require.NoError(t, err)
	f.publishSpread("dead", devtest.Storm(1_000_000, 300_000), keysOf("dead ", 1000))
	_, err = f.pool.Exec(t.Context(), `delete from `+f.schema+`.outbox`)
	require.NoError(t, err)
	rescan := store.NewRelay(f.pool, f.schema, uuid.New(), "", time.Second, 0)
	requests := make([]step.RescanRequest, 16)
	for i := range requests {
		requests[i] = step.RescanRequest{Ref: step.Ref{Shard: int16(i)}, UpTo: 1 << 40, Limit: 1000}
	}
	walk := func() time.Duration {
		began := time.Now()
		_, err := rescan.Rescan(t.Context(), requests)
		require.NoError(t, err)
		return time.Since(began)
	}

	f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{}))
	n := 0
	latency := func() time.Duration {
		n++
		began := time.Now()
		f.publish(strconv.Itoa(n%100), strconv.Itoa(n))
		require.Eventually(t, func() bool { return broker.count() >= n }, time.Minute, time.Millisecond)
		return time.Since(began)
	}
	latency() // the relay has walked them once, for its first read
	// A row below those that were read is found by a rescan alone.
	_, err = f.pool.Exec(t.Context(), `insert into `+f.schema+`.outbox (shard, seq, event_id, topic, key, headers, payload)
		values (0, 1, gen_random_uuid()::text, $1, 'low', '{}', 'low')`, topic)
	require.NoError(t, err)
	var latencies []time.Duration
	walked := walk()
	for began := time.Now(); len(broker.of("low")) == 0 || len(latencies) < 20; latencies = append(latencies, latency()) {
		require.Less(t, time.Since(began), time.Minute, "a rescan finds the row")
	}
	walked = min(walked, walk())
	slices.Sort(latencies)
	p50, p90 := latencies[len(latencies)/2], latencies[len(latencies)*9/10]
	t.Logf("%d events: median %v, p90 %v; the dead rows take %v", len(latencies), p50, p90, walked)
	assert.Less(t, 2*p50, walked, "a read that walked the dead rows would take longer")
}
