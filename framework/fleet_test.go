package framework_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/quietport"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/memory"
)

// arrivals is a broker that remembers when payloads came.
type arrivals struct {
	transport.Transport
	mu sync.Mutex
	at map[string]time.Time
}

func (a *arrivals) Publisher() (message.Publisher, error) { return a, nil }

func (a *arrivals) Publish(_ string, msgs ...*message.Message) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range msgs {
		if _, known := a.at[string(m.Payload)]; !known {
			a.at[string(m.Payload)] = time.Now()
		}
	}
	return nil
}

func (a *arrivals) came(payload string) (time.Time, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.at[payload]
	return at, ok
}

// arriving makes the driver of that broker.
type arriving struct {
	transport.Settings
	to *arrivals
}

func (s *arriving) WithDefaults(env transport.Environment) transport.Settings {
	return &arriving{s.Settings.WithDefaults(env), s.to}
}

func (s *arriving) Open(ctx context.Context, env transport.Environment) (t transport.Transport, err error) {
	s.to.Transport, err = s.Settings.Open(ctx, env)
	return s.to, err
}

// startFleet runs a fleet of the configuration until stop is called or the test ends.
func startFleet(t *testing.T, config string) (came *arrivals, stop func()) {
	t.Helper()
	came = &arrivals{at: map[string]time.Time{}}
	driver := transport.Driver{Name: "memory", Settings: func() transport.Settings { return &arriving{memory.Driver.Settings(), came} }}
	cfg, err := framework.Load(file(t, config), driver)
	require.NoError(t, err)
	cfg.Log.Handler = slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- framework.RunFleet(ctx, cfg) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return came, stop
}

// tenants creates databases with outboxes, and lists them as YAML.
func tenants(t *testing.T, n int) (dsns []string, list string) {
	t.Helper()
	dsns = devtest.Databases(t, n, func(dsn string) error {
		pool, err := pgxpool.New(t.Context(), dsn)
		if err != nil {
			return err
		}
		defer pool.Close()
		return outbox.Migrate(t.Context(), pool, "")
	})
	var entries strings.Builder
	for i, dsn := range dsns {
		fmt.Fprintf(&entries, "- {name: tenant-%d, dsn: %q}\n", i, dsn)
	}
	return dsns, entries.String()
}

// commit commits an event as a process elsewhere does, and returns when, and how long it took to connect.
func commit(t *testing.T, dsn, payload string) (at time.Time, connecting time.Duration) {
	t.Helper()
	begun := time.Now()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	connecting = time.Since(begun)
	_, err = conn.Exec(t.Context(), `insert into millrace.outbox (shard, seq, event_id, topic, key, headers, payload)
		values (0, millrace.outbox_next(0::smallint), $1, 'orders', 'k', '{}', $2)`, outbox.NewID(), []byte(payload))
	require.NoError(t, err)
	return time.Now(), connecting
}

// Two hundred databases stand on one server. The fleet has at most 60 connections to it, one while all of them are idle, and an
// event is published within 2 s. A machine that takes long to connect to a database is allowed as much more as its connections
// take, and a busy one may hold up single events. That none waits longer for its turn is a test of the decisions, in outbox/fleet.
func TestFleetOfManyDatabases(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	const most = 60
	dsns, list := tenants(t, devtest.Storm(200, 80))
	came, stop := startFleet(t, "service: tenants\nbroker: memory\nfleet:\n  databases:\n"+indent(list))
	shared := devtest.Pool(t)
	first, err := pgx.ParseConfig(dsns[0])
	require.NoError(t, err)
	connections := func() (n int) { // by a goroutine, too
		assert.NoError(t, shared.QueryRow(context.Background(), `select count(*) from pg_stat_activity
			where datname like $1 and application_name like 'millrace%'`, first.Database+"%").Scan(&n))
		return n
	}
	counting, end := context.WithCancel(context.Background())
	counted, highest := make(chan struct{}), 0
	go func() {
		defer close(counted)
		for counting.Err() == nil {
			highest = max(highest, connections())
			time.Sleep(20 * time.Millisecond)
		}
	}()
	defer func() { end(); <-counted }()

	awaited := func(payload string) (at time.Time) {
		require.Eventually(t, func() (ok bool) { at, ok = came.came(payload); return ok }, 5*time.Minute, 5*time.Millisecond, payload)
		return at
	}
	require.Eventually(t, func() bool { return connections() == 1 }, 8*time.Minute, 20*time.Millisecond, "idle databases have no connection")
	var took, connecting []time.Duration
	for i := 0; i < len(dsns); i += 7 {
		payload := fmt.Sprint("single-", i)
		at, connected := commit(t, dsns[i], payload)
		took, connecting = append(took, awaited(payload).Sub(at)), append(connecting, connected)
	}
	slices.Sort(took)
	slices.Sort(connecting)
	t.Logf("published after %v (median), %v (longest); a connection takes %v (median), %v (longest)",
		took[len(took)/2], took[len(took)-1], connecting[len(connecting)/2], connecting[len(connecting)-1])
	const connects = 20 // of a probe and a relay, with as much for their statements
	assert.LessOrEqual(t, took[len(took)/2], 2*time.Second+connects*connecting[len(connecting)/2])

	begun := time.Now()
	const many = 40 // more than may be active at once
	for i := range many {
		commit(t, dsns[i], fmt.Sprint("burst-", i))
	}
	for i := range many {
		awaited(fmt.Sprint("burst-", i))
	}
	t.Logf("one event in each of %d databases, written and published after %v", many, time.Since(begun))
	end()
	<-counted
	t.Logf("%d connections at most", highest)
	assert.LessOrEqual(t, highest, most)
	assert.Greater(t, highest, 1, "they were counted")
	stop()
	require.Eventually(t, func() bool { return connections() == 0 }, time.Minute, 20*time.Millisecond)
}

func indent(list string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(list), "\n", "\n  ") + "\n"
}

// The file of databases is read again at run time. A file that is wrong changes nothing.
func TestFleetReadsItsFileAgain(t *testing.T) {
	t.Parallel()
	dsns, list := tenants(t, 2)
	entries := strings.SplitAfter(list, "\n")
	path := filepath.Join(t.TempDir(), "tenants.yaml")
	put := func(content string) { // at once, as Kubernetes does
		require.NoError(t, os.WriteFile(path+".new", []byte(content), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	put("databases:\n" + entries[0])
	address, err := quietport.Address(t.Context())
	require.NoError(t, err)
	came, _ := startFleet(t, fmt.Sprintf("service: tenants\nbroker: memory\nadmin: {address: %q}\nfleet: {file: %q, refresh: 200ms}\n", address, path))
	published := func(payload string) {
		t.Helper()
		require.Eventually(t, func() bool { _, ok := came.came(payload); return ok }, time.Minute, 10*time.Millisecond, payload)
	}
	commit(t, dsns[0], "one")
	commit(t, dsns[1], "two")
	published("one")
	put("databases:\n" + list)
	published("two")
	put("databases:\n- {name: wrong}\n")
	commit(t, dsns[1], "three")
	published("three")
	answer := func(path string) string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, response.StatusCode)
		return string(body)
	}
	assert.Contains(t, answer("/readyz"), "databases: 2")
	metrics := answer("/metrics")
	assert.Contains(t, metrics, `millrace_outbox_published_total{messaging_destination_name="orders",millrace_database="tenant-1"}`)
	assert.Contains(t, metrics, `millrace_fleet_failures{millrace_database="tenant-0"} 0`)
}

func TestFleetToldWrong(t *testing.T) {
	t.Parallel()
	const head = "service: tenants\nbroker: memory\n"
	for config, want := range map[string]string{
		"fleet: {connections: 3}":                                                              "fleet.connections is 3: want 16 or more",
		"fleet: {refresh: 1ms}":                                                                "fleet.refresh is 1ms: want 100ms or more",
		"fleet: {databases: [{dsn: 'postgres://db/a'}]}":                                       `fleet.databases[0].name is "": want 1 to 100 characters`,
		"fleet: {databases: [{name: a}]}":                                                      "fleet.databases[0].dsn is empty: want a connection string",
		"fleet: {databases: [{name: a, dsn: 'postgre://hunter2@db'}]}":                         "fleet.databases[0].dsn is no connection string",
		"fleet: {databases: [{name: a, dns: 'postgres://hunter2@db'}]}":                        "fleet.databases[0].dns is unknown",
		"fleet: {databases: [{name: a, dsn: 'postgres://x'}, {name: a, dsn: 'postgres://y'}]}": `fleet.databases[1].name is "a", and so is another one's`,
		"fleet: {databases: hunter2}":                                                          "fleet.databases is",
	} {
		_, err := framework.Load(file(t, head+config), memory.Driver)
		require.ErrorContains(t, err, want, config)
		assert.NotContains(t, err.Error(), "hunter2")
	}
	cfg, err := framework.Load(file(t, head), memory.Driver)
	require.NoError(t, err)
	require.ErrorContains(t, framework.RunFleet(t.Context(), cfg), "Config.Fleet is empty: want Databases or File")
	for content, want := range map[string]string{
		"":                                    "databases is empty: want one database or more",
		"databases: []":                       "databases is empty: want one database or more",
		"databases:\n- {name: a}":             "tenants.yaml:2: databases[0].dsn is empty",
		"database: []":                        "database is unknown",
		"databases: [{name: a, dsn: *secret}": "is no YAML",
	} {
		path := filepath.Join(t.TempDir(), "tenants.yaml")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := framework.Fleet{File: path}.Provider()(t.Context())
		assert.ErrorContains(t, err, want, content)
	}
	_, err = framework.Fleet{File: "nowhere.yaml"}.Provider()(t.Context())
	assert.ErrorContains(t, err, "Config.Fleet.File (fleet.file)")
}

// A printed configuration shows no connection string of a fleet.
func TestFleetPrintsNoSecret(t *testing.T) {
	t.Parallel()
	cfg, err := framework.Load(file(t, "service: tenants\nbroker: memory\nfleet: {databases: [{name: a, dsn: 'postgres://u:hunter2@db/a'}]}\n"), memory.Driver)
	require.NoError(t, err)
	require.Equal(t, "postgres://u:hunter2@db/a", cfg.Fleet.Databases[0].DSN)
	printed, err := cfg.YAML()
	require.NoError(t, err)
	assert.Contains(t, string(printed), "connections: 40")
	assert.NotContains(t, string(printed)+fmt.Sprintf("%v %+v %#v %v", cfg, cfg, cfg, cfg.Fleet), "hunter2")
}
