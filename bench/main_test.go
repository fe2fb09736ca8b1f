package main

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"math"
	"os"
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

// The tests' program is the one that relay-latency runs again as the other process.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == elsewhereCommand {
		main()
		return
	}
	// It looks for its end every 10 s only, and then ends.
	streams := goleak.IgnoreTopFunction("cloud.google.com/go/pubsub/v2.(*messageIterator).streamKeepAliveHandler")
	// sarama's metrics have one goroutine for the life of the process.
	devtest.Main(m, streams, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

// tiny returns the registry with sizes for a test.
func tiny() []scenario {
	var small []scenario
	for _, s := range scenarios {
		box := 500 * time.Millisecond
		if s.name == outboxWrite.name {
			box /= 10
		}
		if own, ok := map[string]size{
			claims.name:       {rows: 50, runs: 2, slowRuns: 1, bigRows: 3000, box: box / 10},
			pubsubs.name:      {rows: 300, runs: 2, bigRows: 50, box: recordTimeout},
			kafkaEOS.name:     {rows: 300, runs: 2, bigRows: 50, slowRuns: 2, box: recordTimeout},
			relayKafka.name:   {rows: 2000, runs: 2, slowRuns: 2, pace: 200, box: time.Second},
			endToEnd.name:     {runs: 2, pace: 200, box: box},
			consolePages.name: {rows: 200, runs: 2, requests: 1},
		}[s.name]; ok {
			s.full, s.quick = own, own
			small = append(small, s)
			continue
		}
		s.full = size{rows: 3000, runs: 3, slowRuns: 1, bigRows: 4000, hugeRows: 5000, box: box}
		s.quick = size{rows: 2500, runs: 2, slowRuns: 1, bigRows: 4000, box: box}
		small = append(small, s)
	}
	return small
}

// setenv names the tests' services, and tells whether Google's emulator and Apache Kafka are among them.
func setenv(t *testing.T) (emulator, apache bool) {
	stack := devtest.Start(t, devstack.Postgres, devstack.PubSub, devstack.Kafka)
	t.Setenv("MILLRACE_POSTGRES_DSN", stack.PostgresDSN())
	for _, info := range stack.Services() {
		switch {
		case !info.Real:
		case info.Service == devstack.PubSub:
			t.Setenv("PUBSUB_EMULATOR_HOST", stack.PubSubHost())
			emulator = true
		case info.Service == devstack.Kafka:
			t.Setenv("MILLRACE_KAFKA_BROKERS", strings.Join(stack.KafkaBrokers(), ","))
			apache = true
		}
	}
	return emulator, apache
}

// bench runs the command on the tests' server, in place of one of its own.
func bench(t *testing.T, ctx context.Context, args ...string) (code int, stdout, stderr string) {
	setenv(t)
	var out, progress bytes.Buffer
	code = command{scenarios: tiny(), stdout: &out, stderr: &progress}.run(ctx, args)
	return code, out.String(), progress.String()
}

// schemas lists what runs have left in the tests' server.
func schemas(t *testing.T) []string {
	rows, err := devtest.Pool(t).Query(t.Context(), `select nspname from pg_namespace where nspname like 'bench\_%'`)
	require.NoError(t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return names
}

// A gate reads the line: its form and the names of the ratios are an interface.
func TestJSONIsOneLine(t *testing.T) {
	want := map[string][]string{
		"relay-held":    {"held_xmin_5m_vs_free", "held_5m_p99_ms", "free_p99_ms"},
		"relay-latency": {"nudge_p99_ms", "other_process_p99_ms", "poll_p99_ms"},
		"relay-wal":     {"wal_commit_to_publish_p99_ms", "poll_commit_to_publish_p99_ms", "wal_vs_polling_cpu", "log_vs_plain", "rows_vs_plain"},
		"outbox-write": {
			"with_outbox_vs_plain", "with_outbox_vs_plain_rtt", "caller_tx_vs_plain", "producers_with_relays_vs_without",
			"oagudo_vs_plain",
		},
		"claim": {
			"exec_vs_bare_commit", "exec_vs_bare_commit_32", "queue_vs_bare_commit", "queue_vs_bare_commit_32",
			"queue_vs_bare_commit_rtt", "lazy_exec_vs_bare_commit", "lazy_queue_vs_bare_commit", "lazy_exec_vs_bare_commit_rtt",
			"lazy_queue_vs_bare_commit_rtt", "lazy_exec_vs_bare_commit_rtt_slow_disk", "lazy_queue_vs_bare_commit_rtt_slow_disk", "lazy_queue_vs_five_statements_rtt", "exec_vs_five_statements", "exec_vs_five_statements_32", "queue_vs_five_statements",
			"queue_vs_five_statements_32", "group_vs_bare_commit", "deferred_vs_sync", "exec_vs_bare_commit_slow_disk",
			"queue_vs_bare_commit_slow_disk", "group_vs_bare_commit_slow_disk", "deferred_vs_sync_slow_disk", "fail_fast_vs_blocking",
			"processed_3m_vs_empty", "deduplicator_vs_exec",
			"deduplicator_lost_percent", "claim_lost_percent",
		},
		"relay-drain": {
			"vs_skip_locked", "vs_single_select", "vs_watermill_sql", "vs_forwarder", "vs_oagudo", "cost_large_vs_small",
			"slow_broker_vs_forwarder", "held_xmin_vs_free", "skip_locked_held_vs_free", "dead_topic_vs_without",
		},
	}
	onBrokers := map[string][]string{
		"pubsub": {
			"publish_vs_watermill_googlecloud", "publish_vs_bare_client", "publish_single_caller_vs_bare_client",
			"consume_vs_bare_client", "router_consume_vs_bare_client", "consume_vs_watermill_googlecloud",
		},
		"kafka-eos": {
			"vs_franz_go_1000_0ms", "vs_franz_go_1ms", "vs_franz_go_1000_1ms", "router_vs_franz_go_0ms", "router_vs_franz_go_1ms",
			"router_vs_franz_go_router_0ms", "router_vs_franz_go_router_1ms", "franz_go_router_vs_franz_go_0ms", "franz_go_router_vs_franz_go_1ms",
			"router_vs_watermill_kafka_0ms", "router_vs_watermill_kafka_1ms", "vs_own_at_least_once", "vs_own_at_least_once_1ms",
			"add_partitions_per_transaction", "add_offsets_per_transaction", "offset_commits_per_transaction",
			"end_txn_per_transaction", "produce_per_broker_and_transaction", "messages_per_transaction",
			"requests_per_transaction",
		},
		"relay-kafka": {
			"transactional_vs_at_least_once", "at_least_once_mean_ms", "at_least_once_p99_ms", "transactional_mean_ms", "transactional_p99_ms",
		},
		"end-to-end": {"p50_ms", "p99_ms", "max_ms", "ordered_p50_ms", "ordered_p99_ms", "ordered_max_ms"},
	}
	for _, page := range []string{
		"overview", "outbox", "consumers", "outbox_cause", "archive", "archive_topic", "archive_key", "plan_of_archive", "dead", "dead_all_states", "dead_consumer", "dead_cause", "dead_key", "dead_topic",
		"dead_topic_old", "dead_reason", "dead_since", "dead_until", "dead_after", "dead_consumer_and_cause", "dead_letter", "plan_of_replay", "plan_of_outbox_retry", "plan_of_outbox_discard",
		"event_dead", "event_pending", "event_archived", "event_unknown", "event_short", "effects", "effects_done", "keys", "keys_key", "audit",
	} {
		want["console"] = append(want["console"], page+"_p95_ms", page+"_database_p95_ms")
	}
	want["console"] = append(want["console"], "page_p95_ms", "database_p95_ms")
	emulator, apache := setenv(t)
	for scenario, names := range onBrokers {
		want[scenario] = slices.Clone(names)
		for _, name := range names {
			switch {
			case scenario == kafkaEOS.name || scenario == relayKafka.name:
				if apache {
					want[scenario] = append(want[scenario], name+"_apache")
				}
			case emulator:
				want[scenario] = append(want[scenario], name+"_emulator")
			}
		}
	}
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			code, stdout, stderr := bench(t, t.Context(), s.name, "-quick", "-json")
			require.Equal(t, exitOK, code, stderr)
			require.Equal(t, 1, strings.Count(stdout, "\n"), stdout)
			require.True(t, strings.HasSuffix(stdout, "\n"))
			var line struct {
				Scenario string
				Ratios   map[string]float64
			}
			decoder := json.NewDecoder(strings.NewReader(stdout))
			decoder.DisallowUnknownFields()
			require.NoError(t, decoder.Decode(&line))
			assert.Equal(t, s.name, line.Scenario)
			require.Contains(t, want, s.name, "name the ratios of a new scenario here")
			assert.ElementsMatch(t, want[s.name], slices.Collect(maps.Keys(line.Ratios)))
			for name, value := range line.Ratios {
				assert.False(t, math.IsNaN(value) || math.IsInf(value, 0), name)
			}
			for name := range asked(s.name, true) {
				assert.Contains(t, line.Ratios, name, "a target that nobody measures")
			}
			assert.Contains(t, stderr, "run 2 of 2")
			assert.Empty(t, schemas(t))
		})
	}
}

func TestTable(t *testing.T) {
	code, stdout, stderr := bench(t, t.Context(), "relay-drain")
	require.Equal(t, exitOK, code, stderr)
	for _, want := range []string{
		"a backlog of 3,000 events", "median", "vs_skip_locked", "vs_single_select",
		"vs_watermill_sql_200k", "relay, huge backlog", "PostgreSQL", "fsync=", "github.com/jackc/pgx/v5 v5.", "relay: one outbox.Relay",
	} {
		assert.Contains(t, stdout, want)
	}
	assert.Empty(t, schemas(t))
}

// Ctrl-C leaves nothing: neither in a server that the environment names, nor a figure on stdout.
func TestInterrupted(t *testing.T) {
	for _, interrupted := range tiny() {
		t.Run(interrupted.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			setenv(t)
			var stdout, stderr bytes.Buffer
			inner := interrupted.run
			interrupted.run = func(ctx context.Context, env *environment) (*report, error) {
				progress := env.progress
				env.progress = func(format string, args ...any) {
					progress(format, args...)
					if strings.HasPrefix(format, "run ") {
						cancel()
					}
				}
				return inner(ctx, env)
			}
			code := command{scenarios: []scenario{interrupted}, stdout: &stdout, stderr: &stderr}.run(ctx, []string{interrupted.name})
			assert.Equal(t, exitInterrupted, code)
			assert.Empty(t, stdout.String())
			assert.Contains(t, stderr.String(), "interrupted")
			assert.Empty(t, schemas(t))
		})
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"no scenario":      {},
		"unknown scenario": {"relay"},
		"flag first":       {"-quick", "relay-drain"},
		"unknown flag":     {"relay-drain", "-fast"},
		"argument":         {"relay-drain", "-quick", "more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			assert.Equal(t, exitUsage, command{scenarios: scenarios, stdout: &stdout, stderr: &stderr}.run(t.Context(), args))
			assert.Empty(t, stdout.String())
			for _, s := range scenarios {
				assert.Contains(t, stderr.String(), s.name+" ")
			}
		})
	}
	for _, args := range [][]string{{"-h"}, {"help"}, {"relay-drain", "-h"}} {
		var stdout, stderr bytes.Buffer
		assert.Equal(t, exitOK, command{scenarios: scenarios, stdout: &stdout, stderr: &stderr}.run(t.Context(), args))
		assert.Contains(t, stdout.String(), "usage: bench <scenario>")
		assert.Empty(t, stderr.String())
	}
}
