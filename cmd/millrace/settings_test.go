package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// The database is the configuration's; flags win.
func TestConfigFlag(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	file := configFile(t, "service: s\nbroker: memory\npostgres: {dsn: '"+o.dsn+"', schema: "+o.schema+"}\n")
	assert.Contains(t, says(t, cli.ExitOK, "outbox", "check", "--config", file), "The outbox is in order.")
	assert.Contains(t, says(t, cli.ExitFailed, "outbox", "check", "--config", file, "--schema", "elsewhere"), `schema "elsewhere"`)
	assert.Contains(t, says(t, cli.ExitFailed, "outbox", "check", "--config", file, "--dsn", "postgres://127.0.0.1:1/x"), "127.0.0.1")
	assert.Contains(t, says(t, cli.ExitFailed, "outbox", "check", "--config", "nowhere.yaml"), "there is no configuration file nowhere.yaml")
	assert.Contains(t, says(t, cli.ExitFailed, "outbox", "check", "--config", configFile(t, "broker: memory\nservise: s\n")), "did you mean service?")
	assert.Contains(t, says(t, cli.ExitUsage, "outbox", "check", "--schema", "No"), "--schema: ")
	assert.Contains(t, says(t, cli.ExitUsage, "relay", "--config", file), `--broker is "memory": want pubsub or kafka`)
	assert.Contains(t, says(t, cli.ExitUsage, "relay", "--config", file, "--broker", "kafka", "--brokers", "127.0.0.1:1", "--batch-size", "-1"), "--batch-size is -1")
	assert.Contains(t, says(t, cli.ExitFailed, "explain", "e1", "--config", file), "has no event with this ID. Searched: ")
}

// MILLRACE_POSTGRES_SCHEMA is what services go by.
func TestSchemaOfTheEnvironment(t *testing.T) {
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	t.Setenv("MILLRACE_POSTGRES_DSN", o.dsn)
	t.Setenv("MILLRACE_POSTGRES_SCHEMA", o.schema)
	assert.Contains(t, says(t, cli.ExitOK, "outbox", "check"), "The outbox is in order.")
}

// A relay by a service's configuration: flags win over it, its outbox section holds, and that handlers' outputs go in
// transactions does not matter.
func TestRelayByConfiguration(t *testing.T) {
	brokers := strings.Join(devtest.Start(t, devstack.Kafka).KafkaBrokers(), ",")
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	topic := devtest.Topic(t)
	o.publish(topic, "key")
	file := configFile(t, "service: s\nbroker: pubsub\nkafka: {brokers: [127.0.0.1:1], delivery: transactional}\noutbox: {archive: 1h}\n"+
		"postgres: {dsn: '"+o.dsn+"', schema: "+o.schema+"}\n")
	command, output := millrace(t, "relay", "--config", file, "--broker", "kafka", "--brokers", brokers)
	require.NoError(t, command.Start())
	assert.Eventually(t, func() bool {
		var kept int
		require.NoError(t, o.pool.QueryRow(t.Context(), `select count(*) from `+o.schema+`.outbox_archive`).Scan(&kept))
		return kept == 1
	}, time.Minute, 20*time.Millisecond, output)
	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	require.NoError(t, command.Wait(), output)
	assert.Contains(t, output.String(), "relay has ended")
}

// pgx tells of a connection string that it cannot parse with the password in it where spaces stand around the equals sign or in it.
func TestWrongDSN(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{"host=db user=ada password = hunter2 sslmode=bogus", `password=two\ hunter2 port=abc`, "postgres://ada:hunter2@db:port/shop", "postgre://ada:hunter2@db/shop?sslmode=disable"} {
		said := says(t, cli.ExitUsage, "explain", "e1", "--dsn", dsn)
		assert.Regexp(t, `--dsn is (no connection string: want postgres://user:password@host|a connection string with a wrong (sslmode|port): want )`, said)
		assert.NotContains(t, said, "hunter2")
	}
	assert.Contains(t, says(t, cli.ExitUsage, "explain", "e1", "--dsn", "host=db sslmode=verify-ca sslrootcert=nowhere.pem"), "--dsn is naming a file: want one that can be read: open nowhere.pem")
}
