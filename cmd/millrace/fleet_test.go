package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
)

// Commands work on all databases of a fleet, and on one that --database names; the relay forwards all of them.
func TestFleetCommands(t *testing.T) {
	stack := devtest.Start(t, devstack.PubSub)
	dsns := devtest.Databases(t, 2, func(string) error { return nil })
	t.Setenv("PUBSUB_EMULATOR_HOST", stack.PubSubHost())
	config := filepath.Join(t.TempDir(), "fleet.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
service: tenants
broker: pubsub
pubsub: {project_id: %s}
fleet:
  databases:
  - {name: north, dsn: %q}
  - {name: south, dsn: %q}
`, devtest.Project(t), dsns[0], dsns[1]), 0o600))
	says := func(code int, args ...string) string {
		t.Helper()
		var output bytes.Buffer
		require.Equal(t, code, run(append(args, "--config", config), os.Stdin, &output, &output), "%v: %s", args, &output)
		return output.String()
	}
	exec := func(n int, sql string, args ...any) {
		conn, err := pgx.Connect(t.Context(), dsns[n])
		require.NoError(t, err)
		defer conn.Close(context.WithoutCancel(t.Context()))
		_, err = conn.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	up := says(cli.ExitOK, "migrate", "up")
	assert.Regexp(t, `(?m)^DATABASE +COMPONENT +VERSION`, up)
	assert.Regexp(t, `(?m)^north +outbox`, up)
	assert.Regexp(t, `(?m)^south +claim`, up)
	exec(1, `insert into millrace.outbox (shard, seq, event_id, topic, key, headers, payload)
		values (0, millrace.outbox_next(0::smallint), $1, $2, 'k', '{}', '{}')`, outbox.NewID(), devtest.Topic(t))
	exec(0, `insert into millrace.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state)
		values (0, 0, 1, 'dead-one', 'orders', '', '{}', '{}', now(), 'dead')`)

	status := says(cli.ExitOK, "outbox", "status")
	assert.Regexp(t, `(?m)^DATABASE +PENDING +OLDEST +FAILED +DELAYED +RELAYS$`, status)
	assert.Regexp(t, `(?m)^north +0 +- +1 dead +0 +0$`, status)
	assert.Regexp(t, `(?m)^south +1 +\S+( \S+)? +none +0 +0$`, status)
	var reports []struct{ Database string }
	require.NoError(t, json.Unmarshal([]byte(says(cli.ExitOK, "outbox", "status", "-o", "json")), &reports))
	assert.Equal(t, []struct{ Database string }{{"north"}, {"south"}}, reports)
	var events []map[string]any
	require.NoError(t, json.Unmarshal([]byte(says(cli.ExitOK, "outbox", "list", "-o", "json")), &events))
	require.Len(t, events, 1)
	assert.Equal(t, "north", events[0]["database"])
	assert.Equal(t, "No dead letters. To list events that are retried or blocked, too, run: millrace dead list --state all\n", says(cli.ExitOK, "dead", "list"))
	assert.Equal(t, "[]\n", says(cli.ExitOK, "dead", "list", "-o", "json"))
	found := says(cli.ExitFailed, "doctor", "--ignore", "broker")
	assert.Contains(t, found, "database north\n")
	assert.Contains(t, found, "database south\n")
	assert.Contains(t, found, "--database north")

	assert.Contains(t, says(cli.ExitUsage, "outbox", "retry", "--all"), "the configuration has a fleet of 2 databases, and this command works on one: name it by --database")
	assert.Contains(t, says(cli.ExitUsage, "outbox", "retry", "--all", "--database", "nroth"), `the fleet of `+config+` has no such database; did you mean "north"?`)
	assert.Contains(t, says(cli.ExitUsage, "outbox", "status", "--database", "north", "--dsn", dsns[0]), "want one of them")
	assert.Contains(t, says(cli.ExitOK, "outbox", "retry", "--all", "--database", "north"), "1 event will be retried")
	assert.Contains(t, says(cli.ExitOK, "outbox", "status", "--database", "south"), "pending  1 event")
	var output bytes.Buffer
	assert.Equal(t, cli.ExitUsage, run([]string{"outbox", "status", "--database", "south", "--dsn="}, os.Stdin, &output, &output))
	assert.Contains(t, output.String(), "--database needs a configuration with a section fleet")

	command, log := millrace(t, "relay", "--config", config, "--json")
	command.Env = append(command.Env, "PUBSUB_EMULATOR_HOST="+stack.PubSubHost())
	require.NoError(t, command.Start())
	for deadline := time.Now().Add(2 * time.Minute); ; {
		status = says(cli.ExitOK, "outbox", "status")
		if regexp.MustCompile(`(?m)^north +0 +- +none`).MatchString(status) && regexp.MustCompile(`(?m)^south +0 +- +none`).MatchString(status) {
			break
		}
		require.True(t, time.Now().Before(deadline), "%s%s", status, log)
	}
	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	require.NoError(t, command.Wait(), log)
	assert.Contains(t, log.String(), `"msg":"fleet has ended"`)
}

// One database that is away keeps no command from the others.
func TestFleetCommandGoesOnWithoutADatabase(t *testing.T) {
	dsns := devtest.Databases(t, 1, func(string) error { return nil })
	config := filepath.Join(t.TempDir(), "fleet.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
service: tenants
broker: memory
fleet:
  databases:
  - {name: away, dsn: "postgres://127.0.0.1:1/x"}
  - {name: north, dsn: %q}
`, dsns[0]), 0o600))
	var stdout, stderr bytes.Buffer
	require.Equal(t, cli.ExitFailed, run([]string{"migrate", "up", "--config", config}, os.Stdin, &stdout, &stderr))
	assert.Regexp(t, `(?m)^north +outbox`, stdout.String())
	assert.Contains(t, stderr.String(), `database away: no PostgreSQL answers at 127.0.0.1:1`)
}
