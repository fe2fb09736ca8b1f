package deadletter_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox"
)

// With 1,000,000 dead letters the gauge of dead letters took longer than its limit and vanished, so that the alert "resolved"; and a
// replay of one group read the whole table into memory. A short run has a fifth of them. The control counts what the index on
// states is for: without it a sweep, which ran in the transaction that recorded a failure, reads all rows.
func TestMillionDeadLetters(t *testing.T) {
	f := newFixture(t)
	f.sql(`alter table {schema}.claim_failed set unlogged`) // for the test's sake
	f.sql(`insert into {schema}.consumer (name) values ('labour/notify')`)
	const share, listed = 1000, 100
	all := devtest.Storm(1_000_000, 200_000)
	began := time.Now()
	f.sql(`insert into {schema}.claim_failed (consumer, record, event_id, state, attempts, reason, error, handler, topic, headers, payload)
		select 1, ('ff' || lpad(to_hex(n), 30, '0'))::uuid, 'event-' || lpad(n::text, 7, '0'), 'dead', 3, case n % 1000 when 0 then 'permanent' else 'attempts' end,
			case n % 1000 when 0 then '503' else '' end, 'handler', 'topic', '{"uuid": "1", "metadata": {}}', 'payload'
		from generate_series(1, $1::int) n`, all)
	t.Logf("made %d dead letters in %v", all, time.Since(began))

	own, err := pgxpool.NewWithConfig(t.Context(), f.pool.Config()) // its statistics are complete when it is closed
	require.NoError(t, err)
	defer own.Close()
	shared := f.pool
	f.pool, f.store = own, claim.NewPostgresStore(own, claim.Schema(f.schema))
	within := func(what string, f func()) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		f()
		took := time.Since(began)
		runtime.ReadMemStats(&after)
		allocated := (after.TotalAlloc - before.TotalAlloc) >> 20
		t.Logf("%s: %v, %d MB allocated", what, took, allocated)
		assert.Less(t, took, 20*time.Second, what) // on a busy machine; on an idle one it is less than 2 s
		assert.Less(t, allocated, uint64(all>>14), what)
	}
	var groups []deadletter.ErrorGroup
	within("list --groups", func() { groups, err = deadletter.ListGroups(t.Context(), f.pool, f.schema, deadletter.Selection{}) })
	require.NoError(t, err)
	require.Len(t, groups, 2)
	assert.Equal(t, []any{all - all/share, "attempts", all / share, "permanent: <n>"}, []any{groups[0].Events, groups[0].Text, groups[1].Events, groups[1].Text})
	assert.Equal(t, []string{"labour/notify"}, groups[1].Consumers)

	reader := sdkmetric.NewManualReader()
	c := f.claim(claim.Config{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	require.Eventually(t, func() bool { return f.count("claim_run") == 1 }, time.Minute, time.Millisecond)
	within("gauge", func() {
		require.Eventually(t, func() bool { return assert.ObjectsAreEqual(map[string]int64{"dead": int64(all)}, gauge(t, reader)) }, time.Minute, time.Millisecond)
	})

	within("show", func() {
		shown, err := deadletter.Show(t.Context(), f.pool, f.schema, fmt.Sprintf("event-%07d", all/2), "")
		require.NoError(t, err)
		require.Len(t, shown, 1)
	})
	within("replay --group", func() {
		r, err := deadletter.Replay(t.Context(), f.pool, f.schema, deadletter.Selection{Group: groups[1].Group}, me)
		require.NoError(t, err)
		assert.Equal(t, deadletter.Result{Done: all / share}, r)
	})
	within("list", func() {
		found, err := deadletter.List(t.Context(), f.pool, f.schema, deadletter.Listing{Limit: listed})
		require.NoError(t, err)
		assert.Len(t, found, listed)
	})
	within("a failure, and the sweep after it", func() {
		_, err := f.claim(claim.Config{}).Middleware(func(*message.Message) ([]*message.Message, error) { return nil, errOops })(
			message.NewMessageWithContext(t.Context(), outbox.NewID(), nil))
		require.ErrorIs(t, err, errOops)
	})
	cancel()
	require.NoError(t, <-ended)

	f.sql(`select count(*) from {schema}.claim_failed where attempts > 0`) // the control
	own.Close()
	var scanned int
	require.Eventually(t, func() bool {
		require.NoError(t, shared.QueryRow(t.Context(), `select seq_tup_read from pg_stat_all_tables where relid = $1::regclass`, f.schema+".claim_failed").Scan(&scanned))
		return scanned >= all
	}, time.Minute, 10*time.Millisecond)
	assert.Less(t, scanned, all+all/share, "only the control has scanned")
}

// gauge returns how many events failed, by state; nothing if the database did not answer in time.
func gauge(t *testing.T, reader sdkmetric.Reader) map[string]int64 {
	var found metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &found); err != nil {
		t.Logf("collect: %v", err)
		return nil
	}
	states := map[string]int64{}
	for _, s := range found.ScopeMetrics {
		for _, m := range s.Metrics {
			if m.Name != "millrace.claim.failed" {
				continue
			}
			for _, p := range m.Data.(metricdata.Gauge[int64]).DataPoints {
				state, _ := p.Attributes.Value("millrace.state")
				states[state.AsString()] = p.Value
			}
		}
	}
	return states
}
