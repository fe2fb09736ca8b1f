package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

func TestConfigCheck(t *testing.T) {
	t.Parallel()
	good := configFile(t, "service: labour\nbroker: memory\n")
	code, out, _ := configRun("check", good)
	assert.Equal(t, cli.ExitOK, code)
	assert.Equal(t, good+": no errors\n", out)

	bad := configFile(t, "service: labour\nbroker: memory\nhtp: {}\nshutdown_timeout: 5\n")
	code, out, _ = configRun("check", bad)
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, out, bad+":3: htp is unknown: did you mean http?\n")
	assert.Contains(t, out, bad+":4: shutdown_timeout is \"5\": want a duration")

	_, out, _ = configRun("check", configFile(t, "service: labour\nbroker: memory\n\"\\x1b[1mhtp\": {}\n"))
	assert.Contains(t, out, `:3: \x1b[1mhtp is unknown`, "a terminal is not disturbed")
	code, out, _ = configRun("check", "--json", bad)
	assert.Equal(t, cli.ExitFailed, code)
	var told struct{ Problems []string }
	require.NoError(t, json.Unmarshal([]byte(out), &told))
	assert.Len(t, told.Problems, 2)

	code, _, stderr := configRun("check", "nowhere.yaml")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, stderr, "there is no configuration file nowhere.yaml")
	code, _, _ = configRun("check")
	assert.Equal(t, cli.ExitUsage, code)
}

// An empty path names no file: only the environment is checked.
func TestConfigCheckOfTheEnvironment(t *testing.T) {
	t.Setenv("MILLRACE_SERVICE", "labour")
	t.Setenv("MILLRACE_BROKER", "memory")
	code, out, stderr := configRun("check", "")
	assert.Equal(t, cli.ExitOK, code, stderr)
	assert.Equal(t, "the environment: no errors\n", out)
}

func TestConfigPrint(t *testing.T) {
	t.Setenv("MILLRACE_POSTGRES_DSN", "") // which would take the file's place
	path := configFile(t, "service: labour\nbroker: memory\npostgres: {dsn: 'postgres://labour:hunter2@db/labour'}\n")
	code, out, _ := configRun("print", path)
	assert.Equal(t, cli.ExitOK, code)
	assert.Contains(t, out, "shutdown_timeout: 30s\n")
	assert.Contains(t, out, "memory:\n    drain_timeout: 30s\n")
	assert.Contains(t, out, "dsn: (hidden)\n")
	assert.Contains(t, out, "    max_connections: 30\n", "as it takes effect")
	assert.True(t, strings.HasPrefix(out, "# database labour at db:5432, as user labour\nservice: labour\n"), out)
	assert.NotContains(t, out, "hunter2")
	cfg, err := framework.Load(configFile(t, strings.ReplaceAll(out, "(hidden)", "postgres://db/labour")), cli.Drivers...)
	require.NoError(t, err, "it can be read again")
	assert.Equal(t, "labour", cfg.Service)

	code, out, _ = configRun("print", "--json", path)
	assert.Equal(t, cli.ExitOK, code)
	var told struct{ Postgres struct{ DSN, Schema string } }
	require.NoError(t, json.Unmarshal([]byte(out), &told))
	assert.Equal(t, "(hidden)", told.Postgres.DSN)
	assert.Equal(t, "millrace", told.Postgres.Schema)

	code, _, stderr := configRun("print", configFile(t, "broker: memory\n"))
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, stderr, "service is empty")

	_, out, _ = configRun("print", configFile(t, "service: labour\nbroker: memory\npostgres: {dsn: 'host=db user=ada'}\n"))
	assert.Contains(t, out, "# database ada at db:5432", "PostgreSQL's default is the user's")
}

// A service from Kafka to Kafka has no database, and none is printed. Commands that work on one refuse.
func TestConfigWithoutPostgres(t *testing.T) {
	brokers := strings.Join(devtest.Start(t, devstack.Kafka).KafkaBrokers(), ", ")
	path := configFile(t, "service: quotes\npostgres: {disabled: true}\nbroker: kafka\nkafka: {brokers: ["+brokers+"], delivery: transactional}\n")
	code, out, _ := configRun("check", path)
	assert.Equal(t, cli.ExitOK, code, out)
	code, out, _ = configRun("print", path)
	assert.Equal(t, cli.ExitOK, code)
	assert.True(t, strings.HasPrefix(out, "# no database\nservice: quotes\n"), out)
	assert.Contains(t, out, "postgres:\n    disabled: true\n")
	assert.NotContains(t, out, "outbox:")

	out = says(t, cli.ExitOK, "doctor", "--config", path)
	assert.Contains(t, out, "No problems found.")
	assert.Contains(t, out, "The service has no database (postgres.disabled): only the broker was asked.")
	topic := devtest.Topic(t)
	out = says(t, cli.ExitFailed, "doctor", "--config", path, "--subscribe", "quotes.quote="+topic)
	assert.Contains(t, out, "broker: topic "+topic+" is missing\n")
	away := configFile(t, "service: quotes\npostgres: {disabled: true}\nbroker: kafka\nkafka: {brokers: [127.0.0.1:1], delivery: transactional}\n")
	t.Setenv("MILLRACE_KAFKA_BROKERS", "") // that of a stack which runs already
	out = says(t, cli.ExitFailed, "doctor", "--config", away)
	assert.Contains(t, out, "broker: kafka does not answer")
	assert.Contains(t, out, "until then the service handles nothing")
	for _, command := range [][]string{{"outbox", "status"}, {"dead", "list"}, {"migrate", "up"}, {"schedule", "list"}} {
		out = says(t, cli.ExitUsage, append(command, "--config", path)...)
		assert.Contains(t, out, "postgres.disabled is set in "+path+", and this command works on a database", command)
	}

	code, out, _ = configRun("check", configFile(t, "service: quotes\npostgres: {disabled: true}\nbroker: kafka\nkafka: {brokers: ["+brokers+"], delivery: transactional}\neffects: {max_conns: 2}\n"))
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, out, "effects is set, which needs a database, beside postgres.disabled: want a database")
}

func TestConfigSchema(t *testing.T) {
	t.Parallel()
	code, out, _ := configRun("schema")
	assert.Equal(t, cli.ExitOK, code)
	committed, err := os.ReadFile("../../docs/millrace.schema.json")
	require.NoError(t, err)
	assert.Equal(t, string(committed), out)
}

func configRun(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(append([]string{"config"}, args...), nil, &out, &errs)
	return code, out.String(), errs.String()
}

func configFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "millrace.yaml")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}
