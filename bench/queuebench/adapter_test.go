package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

func TestMain(m *testing.M) {
	// sarama's metrics have one goroutine for the life of the process.
	devtest.Main(m, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

// What a slow transaction held up is made up for: the credit grows by the time that has passed, not by the number of turns.
func TestCreditIsOfRealTime(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	c := credit{at: start}
	c.grow(start.Add(10*time.Millisecond), 250)
	assert.Equal(t, 2, c.take(128), "2.5 jobs")
	c.grow(start.Add(1010*time.Millisecond), 250) // a turn of a second
	assert.Equal(t, 128, c.take(128))
	assert.Equal(t, 122, c.take(128), "what was more than a batch, and the half")
	assert.Equal(t, 0, c.take(128))
}

func TestSettings(t *testing.T) {
	t.Parallel()
	environment := map[string]string{"DATABASE_URL": "postgres://there/db"}
	get := func(name string) string { return environment[name] }
	s, err := readSettings(get)
	require.NoError(t, err)
	assert.Equal(t, settings{
		database: "postgres://there/db", fixed: true, rate: 800, targetDepth: 1000, batch: 128, every: 10 * time.Millisecond, payload: 256,
		workers: 32, work: time.Millisecond, sampleEvery: 5 * time.Second,
	}, s)
	environment = map[string]string{"WORKER_COUNT": "0", "PRODUCER_RATE": "many", "PRODUCER_MODE": "burst", "SCENARIO": "worker_only"}
	_, err = readSettings(get)
	for _, want := range []string{
		`WORKER_COUNT is "0": want a number of at least 1`, `PRODUCER_RATE is "many"`, `PRODUCER_MODE is "burst": want fixed or depth-target`,
		`SCENARIO is "worker_only"`, "DATABASE_URL is not set",
	} {
		assert.ErrorContains(t, err, want)
	}
}

func TestRateOfTheFile(t *testing.T) {
	t.Parallel()
	s := settings{rate: 800, rateFile: filepath.Join(t.TempDir(), "rate")}
	assert.Equal(t, 800.0, s.currentRate(), "no file")
	for text, want := range map[string]float64{"1200.0\n": 1200, "": 800, "-1": 0} {
		require.NoError(t, os.WriteFile(s.rateFile, []byte(text), 0o600))
		assert.Equal(t, want, s.currentRate(), text)
	}
}

// newDatabase is one as the harness makes it: empty, and the adapter's own.
func newDatabase(t *testing.T) string {
	t.Helper()
	server := devtest.Start(t, devstack.Postgres).PostgresDSN()
	command := func(sql string) {
		ctx := context.WithoutCancel(t.Context())
		conn, err := pgx.Connect(ctx, server)
		require.NoError(t, err)
		_, err = conn.Exec(ctx, sql)
		require.NoError(t, errors.Join(err, conn.Close(ctx)))
	}
	name := "queuebench_" + strings.ToLower(rand.Text())
	command("create database " + name)
	t.Cleanup(func() { command("drop database " + name) })
	address, err := url.Parse(server)
	require.NoError(t, err)
	address.Path = "/" + name
	return address.String()
}

// The adapter as the harness runs it: a descriptor that has the manifest's tables, then the samples; and when it is told to end, all that
// was inserted has been handled.
func TestAdapter(t *testing.T) {
	database := newDatabase(t)
	for name, value := range map[string]string{
		"DATABASE_URL": database, "MILLRACE_KAFKA_BROKERS": "", "PRODUCER_RATE": "200", "WORKER_COUNT": "4", "SAMPLE_EVERY_S": "1",
	} {
		t.Setenv(name, value)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	in, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, out)
		ended <- errors.Join(err, out.Close())
	}()
	lines := json.NewDecoder(in)

	var described manifest
	require.NoError(t, lines.Decode(&described))
	var static manifest
	text, err := os.ReadFile("adapter.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &static))
	assert.Equal(t, static.System, described.System)
	assert.Subset(t, described.Tables, static.Tables)

	seen := map[string]sample{}
	for seen["completion_rate"].Value == 0 || seen["claim_p99_ms"].Value == 0 || len(seen) < 7 {
		var s sample
		require.NoError(t, lines.Decode(&s))
		assert.Equal(t, "millrace adapter adapter", s.System+" "+s.Kind+" "+s.SubjectKind)
		seen[s.Metric] = s
	}
	assert.ElementsMatch(t, []string{"claim_p50_ms", "claim_p95_ms", "claim_p99_ms", "enqueue_rate", "completion_rate", "queue_depth", "producer_target_rate"},
		slices.Collect(maps.Keys(seen)))
	assert.Equal(t, 200.0, seen["producer_target_rate"].Value)

	cancel()
	_, _ = io.Copy(io.Discard, io.MultiReader(lines.Buffered(), in))
	require.NoError(t, <-ended)
	conn, err := pgx.Connect(t.Context(), database)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })
	var inserted, handled int
	require.NoError(t, conn.QueryRow(t.Context(), `select (select sum(jobs) from queuebench_inserted), (select count(*) from millrace.processed)`).Scan(&inserted, &handled))
	assert.Positive(t, inserted)
	assert.Equal(t, inserted, handled)
	for _, table := range described.Tables {
		var there bool
		require.NoError(t, conn.QueryRow(t.Context(), `select to_regclass($1) is not null`, table).Scan(&there))
		assert.True(t, there, table)
	}
	for _, index := range static.Indexes {
		var there bool
		require.NoError(t, conn.QueryRow(t.Context(), `select to_regclass($1) is not null`, index).Scan(&there))
		assert.True(t, there, index)
	}
}
