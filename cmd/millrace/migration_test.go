package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox/brokermigration"
	"github.com/millrace-go/millrace/transport"
)

// answering is a broker that answers once.
type answering struct {
	transport.Transport
	name  string
	asked int
}

func (b *answering) Name() string { return b.name }

func (b *answering) Inspect(context.Context, string, string) (transport.Inspection, error) {
	if b.asked++; b.asked > 1 {
		return transport.Inspection{}, errors.New("the broker is away")
	}
	return transport.Inspection{Topic: true, Consumer: true}, nil
}

// Whoever tries again after a failure makes another step.
func TestStepIsMadeEvenIfTheNextOneCannotBeJudged(t *testing.T) {
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	o.exec(`insert into {schema}.outbox_broker_process (process_id, name, service, from_name, to_name, expires_at, epoch, consumers)
		values (gen_random_uuid(), 'host:1', 'shop', 'old', 'new', now() + interval '1 hour', 0, '[{"topic": "t", "group": "g"}]')`)
	var said bytes.Buffer
	a := cli.New(os.Stdin, &said, &said)
	q := brokermigration.Query{Pool: o.pool, Schema: o.schema, From: &answering{name: "old"}, To: &answering{name: "new"}}
	s, err := step(t.Context(), a, q, false, "test")
	require.NoError(t, err)
	assert.Equal(t, brokermigration.Status{From: "old", To: "new", Phase: brokermigration.Drain, Epoch: 1}, s)
	assert.Contains(t, said.String(), "the step was made")
}

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

	// The command that the status prints for a consumer that is gone can be run, also for the broker to which the fleet goes.
	topic := devtest.Topic(t)
	kafka, err := connectors["Kafka"](t, "notify", devtest.Topic(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, kafka.Close()) }()
	p, err := kafka.Publisher()
	require.NoError(t, err)
	require.NoError(t, p.Publish(topic, message.NewMessage("1", nil)))
	o.exec(`insert into {schema}.outbox_broker_process (process_id, name, service, from_name, to_name, expires_at, epoch, consumers)
		values (gen_random_uuid(), 'gone', 'shop', 'pubsub', 'kafka', now() - interval '1 hour', 3, '[{"topic": "` + topic + `", "group": "shop.notify"}]')`)
	printed := regexp.MustCompile(`"millrace (consumer reset .+)"`).FindStringSubmatch(o.run(cli.ExitOK, "migration", "status", "--config", config))
	require.Len(t, printed, 2)
	assert.Contains(t, says(t, cli.ExitOK, append(strings.Fields(printed[1]), "--config", config)...), "Nothing was changed.")
	o.exec(`delete from {schema}.outbox_broker_process where name = 'gone'`)

	// The variables are those of the own service, not of the other one.
	t.Setenv("MILLRACE_MIGRATION_TO", "kafka")
	t.Setenv("MILLRACE_POSTGRES_DSN", stack.PostgresDSN())
	t.Setenv("MILLRACE_POSTGRES_SCHEMA", o.schema)
	t.Setenv("DATABASE_URL", stack.PostgresDSN())
	other, consumers := newOperator(t), filepath.Join(t.TempDir(), "billing.yaml")
	other.run(cli.ExitOK, "migrate", "up")
	other.exec(`insert into {schema}.outbox_broker_process (process_id, name, service, from_name, to_name, expires_at, epoch, consumers)
		values (gen_random_uuid(), 'host:2', 'billing', 'pubsub', 'kafka', now() + interval '1 hour', 0, '[{"topic": "orders.placed", "group": "billing.notify"}]')`)
	beside := func(code int, postgres string) string {
		t.Helper()
		require.NoError(t, os.WriteFile(consumers, fmt.Appendf(nil, "service: billing\nbroker: pubsub\npubsub: {project_id: p}\n%s\n", postgres), 0o600))
		return o.run(code, "migration", "back", "--config", config, "--consumers", consumers)
	}
	assert.Contains(t, beside(cli.ExitUsage, ""), "has no postgres.dsn")
	assert.Contains(t, beside(cli.ExitUsage, fmt.Sprintf("postgres: {dsn: %q, schema: %s}", stack.PostgresDSN(), o.schema)), "are those of the migration")
	assert.Contains(t, beside(cli.ExitFailed, fmt.Sprintf("postgres: {dsn: %q, schema: %s}", stack.PostgresDSN(), other.schema)), "consumer billing.notify of topic orders.placed is not known to pubsub")
}
