package framework_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/retry"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/memory"
	"github.com/millrace-go/millrace/transport/pubsub"
)

var drivers = []transport.Driver{pubsub.Driver, kafka.Driver, memory.Driver}

func TestFileThenEnvironment(t *testing.T) {
	t.Setenv("MILLRACE_HANDLERS_NOTIFY_PARENTS_CONCURRENCY", "7")
	t.Setenv("MILLRACE_KAFKA_BROKERS", "10.0.0.1:9092, 10.0.0.2:9092")
	t.Setenv("MILLRACE_SHUTDOWN_TIMEOUT", "40s")
	cfg, err := framework.Load(file(t, `
service: labour
broker: kafka
shutdown_timeout: 20s
handlers:
  notify-parents: {ordered: true}
  bill: {concurrency: 3, timeout: 5s, retry: [{error: no such, ignore: true}]}
outbox:
  relay: apart
  batch_size: 500
  retry:
    - {error: invalid payload, dead: true}
    - topic: backfill.*
      max_attempts: 100
      backoff: 1m
claim:
  retention: 240h
  retry: [{topic: labour.*, max_attempts: 3}]
kafka:
  delivery: transactional
  consumers:
    bill: {retry: {min: 1s}}
`), drivers...)
	require.NoError(t, err)
	assert.Equal(t, map[string]framework.Handler{
		"notify-parents": {Concurrency: 7, Ordered: true},
		"bill":           {Concurrency: 3, HandlerConfig: claim.HandlerConfig{Timeout: 5 * time.Second, Retry: retry.Policy{{ErrorText: "no such", Ignore: true}}}},
	}, cfg.Handlers)
	assert.Equal(t, retry.Policy{{Topic: "labour.*", MaxAttempts: 3}}, cfg.Claim.Retry)
	assert.Equal(t, 40*time.Second, cfg.ShutdownTimeout)
	assert.Equal(t, framework.Apart, cfg.Outbox.Relay)
	assert.Equal(t, 500, cfg.Outbox.BatchSize)
	assert.Equal(t, retry.Policy{{ErrorText: "invalid payload", Dead: true}, {Topic: "backfill.*", MaxAttempts: 100, Backoff: time.Minute}}, cfg.Outbox.Retry)
	assert.Equal(t, 240*time.Hour, cfg.Claim.Retention)
	assert.Equal(t, "millrace", cfg.Postgres.Schema, "a default")

	driver, settings, err := cfg.Settings()
	require.NoError(t, err)
	assert.Equal(t, "kafka", driver.Name)
	assert.NoError(t, settings.WithDefaults(transport.Environment{}).Validate())
}

func TestOneThatWasMadeInGo(t *testing.T) {
	t.Parallel()
	cfg := framework.Config{Service: "labour", Drivers: drivers, Broker: "memory"}.WithDefaults()
	require.NoError(t, cfg.Validate())
	driver, settings, err := cfg.Settings()
	require.NoError(t, err)
	assert.Equal(t, "memory", driver.Name)
	memory, err := settings.Open(t.Context(), transport.Environment{})
	require.NoError(t, err)
	assert.NoError(t, memory.Close())
}

// Transactions are Kafka's alone: with another broker a service does not begin.
func TestTransactionalDeliveryNeedsKafka(t *testing.T) {
	bare(t)
	const yaml = "service: labour\nbroker: %s\nkafka: {brokers: [localhost:9092]}\npubsub: {project_id: p}\noutbox: {delivery: transactional}\n"
	for _, broker := range []string{"kafka", "pubsub"} {
		cfg, err := framework.Load(file(t, fmt.Sprintf(yaml, broker)), drivers...)
		if err == nil {
			err = cfg.WithDefaults().Validate()
		}
		if broker == "kafka" {
			require.NoError(t, err)
			assert.Equal(t, outbox.Transactional, cfg.Outbox.Delivery)
			continue
		}
		require.ErrorContains(t, err, "outbox.delivery is Transactional: want AtLeastOnce, or the broker kafka")
	}
}

// Events in the log have no count, and an idle database of a fleet has no relay that would land them.
func TestStoreLogIsRefused(t *testing.T) {
	bare(t)
	const head = "service: labour\nbroker: kafka\nkafka: {brokers: [localhost:9092]}\n"
	for yaml, want := range map[string]string{
		"outbox: {store: log}\n":                  "",
		"outbox: {store: log, max_backlog: 10}\n": "outbox.max_backlog is 10: want 0 where outbox.store is Log",
		"outbox: {store: log}\nfleet: {databases: [{name: a, dsn: 'postgres://db/a'}]}\n": "outbox.store is Log: want Rows with fleet",
		"outbox: {store: table}\n": `outbox.store is "table": want rows or log`,
	} {
		cfg, err := framework.Load(file(t, head+yaml), drivers...)
		if err == nil {
			err = cfg.WithDefaults().Validate()
		}
		if want == "" {
			require.NoError(t, err)
			assert.Equal(t, outbox.Log, cfg.Outbox.Store)
			continue
		}
		require.ErrorContains(t, err, want)
	}
}

// A migration to or from transactional delivery was no error of the configuration, and no process started with it.
func TestMigrationNeedsDeliveryAtLeastOnce(t *testing.T) {
	bare(t)
	const yaml = "service: labour\nbroker: %s\nmigration: {to: %s}\nkafka: {brokers: [localhost:9092], delivery: %s}\npubsub: {project_id: p}\n"
	for _, brokers := range [][2]string{{"kafka", "pubsub"}, {"pubsub", "kafka"}} {
		_, err := framework.Load(file(t, fmt.Sprintf(yaml, brokers[0], brokers[1], "at_least_once")), drivers...)
		require.NoError(t, err)
		_, err = framework.Load(file(t, fmt.Sprintf(yaml, brokers[0], brokers[1], "transactional")), drivers...)
		require.ErrorContains(t, err, fmt.Sprintf("migration.to is %q beside a broker that delivers transactionally: want kafka.delivery: at_least_once", brokers[1]))
	}
}

// DATABASE_URL was read from the process even if the program gave another environment.
func TestDatabaseURLIsThatOfTheGivenEnvironment(t *testing.T) {
	bare(t)
	t.Setenv("DATABASE_URL", "postgres://process/labour")
	path := file(t, "service: labour\nbroker: memory\n")
	for want, load := range map[string]func() (framework.Config, error){
		"postgres://process/labour": func() (framework.Config, error) { return framework.Load(path, drivers...) },
		"postgres://given/labour": func() (framework.Config, error) {
			return framework.LoadEnv(path, []string{"DATABASE_URL=postgres://given/labour"}, drivers...)
		},
		"": func() (framework.Config, error) { return framework.LoadEnv(path, nil, drivers...) },
	} {
		cfg, err := load()
		require.NoError(t, err)
		assert.Equal(t, want, cfg.WithDefaults().Postgres.DSN)
	}
	assert.Equal(t, "postgres://process/labour", framework.Config{}.WithDefaults().Postgres.DSN)
}

// A file may be empty, and what is in it besides settings does no harm.
func TestFilesWithLittleInThem(t *testing.T) {
	bare(t)
	t.Setenv("MILLRACE_SERVICE", "labour")
	t.Setenv("MILLRACE_BROKER", "memory")
	for _, content := range []string{"", "\n", "# nothing\n", "---\n", "---\n# nothing\n...\n", "null", "\ufefflog: {level: warn}\r\n", "log:\npostgres: ~\nhandlers: {a: }\n"} {
		cfg, err := framework.Load(file(t, content), drivers...)
		require.NoError(t, err, content)
		assert.Equal(t, "labour", cfg.Service, content)
	}
}

// A zero that is written means the default, too, but where the field says otherwise.
func TestZeroThatIsWritten(t *testing.T) {
	bare(t)
	cfg, err := framework.Load(file(t, `
service: labour
broker: memory
shutdown_timeout: 0
postgres: {max_connections: 0, schema: ""}
outbox: {batch_size: 0}
telemetry: {traces: false}
`), drivers...)
	require.NoError(t, err)
	assert.Equal(t, 30*time.Second, cfg.ShutdownTimeout)
	assert.Equal(t, "millrace", cfg.Postgres.Schema)
	assert.Equal(t, framework.Config{}.Outbox.WithDefaults().BatchSize, cfg.Outbox.WithDefaults().BatchSize)
	require.NotNil(t, cfg.Telemetry.Traces)
	assert.False(t, *cfg.Telemetry.Traces)
}

func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "millrace.yaml")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}
