package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox/brokermigration"
)

func TestMigrationCommands(t *testing.T) {
	stack := devtest.Start(t, devstack.Postgres, devstack.PubSub, devstack.Kafka)
	t.Setenv("PUBSUB_EMULATOR_HOST", stack.PubSubHost())
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	assert.Contains(t, o.run(cli.ExitUsage, "migration", "status"), "name by --config a configuration with broker and migration.to")
	config := filepath.Join(t.TempDir(), "millrace.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "service: shop\nbroker: pubsub\nmigration: {to: kafka}\npostgres: {dsn: %q, schema: %s}\npubsub: {project_id: %s}\nkafka: {brokers: [%s]}\n",
		stack.PostgresDSN(), o.schema, devtest.Project(t), strings.Join(stack.KafkaBrokers(), ", ")), 0o600))

	said := o.run(cli.ExitFailed, "migration", "next", "--config", config)
	assert.Contains(t, said, "Phase: consume.")
	assert.Contains(t, said, "no process takes part in the migration: start processes with broker: pubsub and migration: {to: kafka}")

	o.exec(`insert into {schema}.outbox_broker_process (process_id, name, service, from_name, to_name, expires_at, epoch, consumers)
		values (gen_random_uuid(), 'host:1', 'shop', 'pubsub', 'kafka', now() + interval '1 hour', 0, '[]')`)
	assert.Contains(t, o.run(cli.ExitOK, "migration", "status", "--config", config), `Safe: "millrace migration next", to phase drain.`)
	said = o.run(cli.ExitOK, "migration", "next", "--config", config, "--actor", "anna")
	assert.Contains(t, said, "Phase: drain.")
	assert.Contains(t, said, "process host:1 has not yet ended what it began before phase drain")
	assert.Regexp(t, `shop +host:1 +an earlier one +0`, said)
	o.exec(`update {schema}.outbox_broker_process set epoch = 1`)
	o.run(cli.ExitOK, "migration", "next", "--config", config)
	o.run(cli.ExitOK, "migration", "back", "--config", config)

	var s brokermigration.Status
	require.NoError(t, json.Unmarshal([]byte(o.run(cli.ExitOK, "migration", "status", "--config", config, "--json")), &s))
	assert.Equal(t, brokermigration.Return, s.Phase)
	assert.EqualValues(t, 3, s.Epoch)
	require.Len(t, s.Processes, 1)
	assert.Empty(t, s.Next.Blocked)
	assert.Len(t, s.Back.Blocked, 1)
	assert.Contains(t, o.run(cli.ExitOK, "outbox", "audit"), "anna")
}
