package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// operator runs commands on a schema of the test's own.
type operator struct {
	t      *testing.T
	pool   *pgxpool.Pool
	dsn    string
	schema string
}

func newOperator(t *testing.T) *operator {
	return &operator{t: t, pool: devtest.Pool(t), schema: devtest.Schema(t), dsn: devtest.Start(t, devstack.Postgres).PostgresDSN()}
}

// run returns what the command says, which must end with the code.
func (o *operator) run(code int, args ...string) string {
	o.t.Helper()
	var output bytes.Buffer
	got := run(append(args, "--schema", o.schema, "--dsn", o.dsn), os.Stdin, &output, &output)
	require.Equal(o.t, code, got, "%v: %s", args, &output)
	return output.String()
}

func (o *operator) exec(sql string) {
	_, err := o.pool.Exec(context.Background(), strings.ReplaceAll(sql, "{schema}", o.schema))
	require.NoError(o.t, err)
}

func (o *operator) publish(topic, key string) {
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: o.schema})
	require.NoError(o.t, err)
	require.NoError(o.t, pgtx.Run(o.t.Context(), o.pool, func(ctx context.Context, _ pgx.Tx) error {
		msg := message.NewMessageWithContext(ctx, outbox.NewID(), []byte("payload"))
		transport.SetKey(msg, key)
		return events.Publish(topic, msg)
	}))
}

func TestMigrateCommand(t *testing.T) {
	o := newOperator(t)
	assert.Contains(t, o.run(cli.ExitOK, "migrate", "status"), "pending")
	assert.Contains(t, o.run(cli.ExitFailed, "outbox", "status"), `run "millrace migrate up"`)
	assert.Contains(t, o.run(cli.ExitOK, "migrate", "print"), `create table "`+o.schema+`".processed`)
	out := o.run(cli.ExitOK, "migrate", "up")
	assert.Regexp(t, `outbox +1 +outbox +20`, out)
	assert.Regexp(t, `claim +1 +claim +20`, out)
	assert.NotContains(t, out, "pending")
	assert.Empty(t, o.run(cli.ExitOK, "migrate", "print"), "nothing would run")
	assert.Contains(t, o.run(cli.ExitOK, "migrate", "print", "--component=outbox", "--to=0"), `drop table "`+o.schema+`".outbox,`)

	var found []map[string]any
	require.NoError(t, json.Unmarshal([]byte(o.run(cli.ExitOK, "migrate", "status", "--json")), &found))
	assert.Equal(t, "outbox", found[0]["component"])

	assert.Contains(t, o.run(cli.ExitUsage, "migrate", "down"), "want --component and --to")
	o.publish("topic", "key")
	assert.Contains(t, o.run(cli.ExitFailed, "migrate", "down", "--component=outbox", "--to=0"), "1 in the outbox")
	assert.Regexp(t, `outbox +1 +outbox +pending`, o.run(cli.ExitOK, "migrate", "down", "--component=outbox", "--to=0", "--force"))
	assert.Contains(t, o.run(cli.ExitUsage, "migrate", "up", "--component=kafka"), "--component is \"kafka\": want outbox, claim, effect, idempotencykey or schedule\n")

	o.run(cli.ExitOK, "migrate", "up")
	o.exec(`create role {schema}_x`)
	t.Cleanup(func() { o.exec(`drop owned by {schema}_x; drop role {schema}_x`) })
	assert.Contains(t, o.run(cli.ExitUsage, "migrate", "grants"), "want at least one of")
	assert.Contains(t, o.run(cli.ExitOK, "migrate", "grants", "--consumer", o.schema+"_x", "--print"), "grant select, insert")
	o.run(cli.ExitOK, "migrate", "grants", "--consumer", o.schema+"_x", "--writer", o.schema+"_x")
	assert.Contains(t, o.run(cli.ExitOK, "migrate", "grants", "--http", o.schema+"_x", "--print"), "idempotency_key_days")
	o.run(cli.ExitOK, "migrate", "grants", "--http", o.schema+"_x", "--scheduler", o.schema+"_x")
	var may bool
	require.NoError(t, o.pool.QueryRow(t.Context(), `select has_table_privilege($1 || '_x', $1 || '.processed', 'insert')
		and has_table_privilege($1 || '_x', $1 || '.schedule', 'update') and has_table_privilege($1 || '_x', $1 || '.outbox', 'insert') and not has_table_privilege($1 || '_x', $1 || '.outbox', 'delete')`, o.schema).Scan(&may))
	assert.True(t, may)
	assert.Contains(t, o.run(cli.ExitFailed, "migrate", "grants", "--relay", o.schema+"_nobody"), "does not exist")
}

func TestOutboxCommands(t *testing.T) {
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	o.publish("labour.completed", "key")
	o.exec(`insert into {schema}.outbox_failed (state, event_id, topic, key, hash, shard, seq, headers, payload, created_at, attempts, reason)
		select 'dead', 'e1', 't', E'k\x1b1', 7, 7, 1, '{}', 'secret', now() - interval '3 days', 10, E're\nfused'`)

	out := o.run(cli.ExitOK, "outbox", "status")
	assert.Regexp(t, `^pending  1 event; the oldest has waited for \S+
failed   1 dead
delayed  none
relays   none, so nothing is published: start a service, or "millrace relay"

FAILED  STATE  REASON
1       dead   re\\nfused

TOPIC             PENDING  OLDEST  FAILED
labour.completed  1        \S+ +0
t                 0        -       1
$`, out)
	assert.Regexp(t, `(?s)SHARD  PENDING  OLDEST  LEASE  RELAY  TROUBLE\n0      \d .*\n15     \d .*TOPIC`, o.run(cli.ExitOK, "outbox", "status", "--shards"))
	var report outboxadmin.Report
	require.NoError(t, json.Unmarshal([]byte(o.run(cli.ExitOK, "outbox", "status", "--json")), &report))
	assert.EqualValues(t, 1, report.Pending.N)
	assert.EqualValues(t, 1, report.Failed["dead"].N, "JSON has the same words")

	out = o.run(cli.ExitOK, "outbox", "list", "--state", "dead")
	assert.Regexp(t, `e1 +t +k\\x1b1 +dead +10 +3d +[0-9a-f]{8} +re\\nfused\n`, out)
	assert.NotContains(t, out, "secret")
	assert.Contains(t, o.run(cli.ExitOK, "outbox", "list", "--payload"), "secret")
	assert.Contains(t, o.run(cli.ExitUsage, "outbox", "list", "--state", "lost"), "--state is \"lost\": want dead, retrying, blocked, discarded, delayed or all\n")

	assert.Contains(t, o.run(cli.ExitUsage, "outbox", "retry"), "want event IDs, --key, --topic, --group or --all")
	assert.Contains(t, o.run(cli.ExitUsage, "outbox", "retry", "e1", "--all"), "--all cannot be combined with event IDs, --key, --topic or --group\n")
	assert.Contains(t, o.run(cli.ExitFailed, "outbox", "retry", "e2"), "no such event: run \"millrace outbox list\" to see which there are\n")
	assert.Equal(t, "1 event will be retried by a running relay.\n", o.run(cli.ExitOK, "outbox", "retry", "e1"))
	assert.Contains(t, o.run(cli.ExitOK, "outbox", "list"), " dead, to retry ")
	assert.Equal(t, "1 event will be discarded by a running relay.\n", o.run(cli.ExitOK, "outbox", "discard", "--all"))
	assert.Contains(t, o.run(cli.ExitOK, "outbox", "list"), " dead, to discard ")

	assert.Contains(t, o.run(cli.ExitUsage, "outbox", "clean", "--older-than", "1h"), "--slot is missing")
	assert.Contains(t, o.run(cli.ExitUsage, "outbox", "clean", "--slot", "s"), "--older-than is missing")
	assert.Contains(t, o.run(cli.ExitUsage, "outbox", "purge"), "--older-than is missing")
	o.exec(`update {schema}.outbox_failed set state = 'discarded', command = null, failed_at = now() - interval '2 hours'`)
	assert.Equal(t, "1 discarded event was deleted.\n", o.run(cli.ExitOK, "outbox", "purge", "--older-than", "1h"))
	assert.Equal(t, "No event has failed, and none is delayed.\n", o.run(cli.ExitOK, "outbox", "list"))
	assert.Equal(t, "No event has failed.\n", o.run(cli.ExitOK, "outbox", "list", "--groups"))
	assert.Equal(t, "No event matches --state dead --topic 'a b'. To list all, run: millrace outbox list\n", o.run(cli.ExitOK, "outbox", "list", "--state", "dead", "--topic", "a b"))

	assert.Contains(t, o.run(cli.ExitOK, "outbox", "check"), "The outbox is in order.\n")
	o.exec(`update {schema}.outbox set seq = 1000`)
	assert.Contains(t, o.run(cli.ExitFailed, "outbox", "check"), "wrong: the sequence of shard")
	assert.Contains(t, o.run(cli.ExitOK, "outbox", "check", "--fix"), "fixed: the sequence of shard")

	assert.Contains(t, o.run(cli.ExitUsage, "outbox", "topic", "pause"), "TOPIC is missing, for example: millrace outbox topic pause")
	assert.Regexp(t, `^Topic labour.completed is paused. Its events wait until: millrace outbox topic resume .* labour.completed\n$`,
		o.run(cli.ExitOK, "outbox", "topic", "pause", "labour.completed", "--actor", "ada", "--note", "the consumer is mended"))
	assert.Regexp(t, `TOPIC +PENDING +OLDEST +FAILED +STATE +WHY\nlabour.completed +1 +\S+ +0 +paused for \S+ +by ada, the consumer is mended\n`, o.run(cli.ExitOK, "outbox", "status"))
	assert.Contains(t, o.run(cli.ExitFailed, "outbox", "shards", "4"), `topic "labour.completed" is paused, so the outbox cannot drain: resume it first`)
	assert.Equal(t, "Topic labour.completed is resumed.\n", o.run(cli.ExitOK, "outbox", "topic", "resume", "labour.completed"))
	assert.Contains(t, o.run(cli.ExitFailed, "outbox", "topic", "resume", "labour.completed"), "topic labour.completed is not paused: ")

	redirect := func(code int, args ...string) string {
		return o.run(code, append([]string{"outbox", "topic", "redirect"}, args...)...)
	}
	assert.Contains(t, redirect(cli.ExitUsage, "labour.completed"), "want either --to or --off\n")
	assert.Contains(t, redirect(cli.ExitUsage, "labour.completed", "--to", "labour.completed"), `--to is "labour.completed": want another topic`)
	assert.Regexp(t, `^Events of topic labour.completed are published to other until: millrace outbox topic redirect --off .* labour.completed\n$`,
		redirect(cli.ExitOK, "labour.completed", "--to", "other", "--actor", "ada"))
	assert.Regexp(t, `redirected for \S+ +to other, by ada\n`, o.run(cli.ExitOK, "outbox", "status"))
	var topic outboxadmin.TopicReport
	require.NoError(t, json.Unmarshal([]byte(redirect(cli.ExitOK, "labour.completed", "--to", "third", "--json")), &topic))
	assert.Equal(t, "third", topic.To)
	assert.Contains(t, redirect(cli.ExitFailed, "third", "--to", "fourth"), `topic "labour.completed" is redirected to "third", and a topic may be redirected only once`)
	assert.Equal(t, "Events of topic labour.completed are published to it again.\n", redirect(cli.ExitOK, "labour.completed", "--off"))
	assert.Contains(t, redirect(cli.ExitFailed, "labour.completed", "--off"), "topic labour.completed is not redirected: ")
	assert.Regexp(t, `(?s)end redirect +0 .*redirect +0 +topic labour.completed; to third.* ada +pause +0 +the consumer is mended; topic labour.completed\n`, o.run(cli.ExitOK, "outbox", "audit"))

	discard := func(code int, args ...string) string {
		return o.run(code, append([]string{"outbox", "topic", "discard", "labour.completed"}, args...)...)
	}
	assert.Contains(t, discard(cli.ExitUsage), "want either --older-than or --all\n")
	assert.Contains(t, discard(cli.ExitUsage, "--all", "--limit", "-1"), "--limit is -1: want 1 or more")
	assert.Contains(t, discard(cli.ExitFailed, "--all"), "the topic is not paused: pause it first")
	o.run(cli.ExitOK, "outbox", "topic", "pause", "labour.completed")
	assert.Equal(t, "0 pending events of topic labour.completed were discarded.\n", discard(cli.ExitOK, "--older-than", "1d"))
	assert.JSONEq(t, `{"discarded": 1}`, discard(cli.ExitOK, "--all", "--actor", "ada", "--json"))
	assert.Regexp(t, `labour.completed +key +discarded .* discarded by ada\n`, o.run(cli.ExitOK, "outbox", "list"))
	assert.Regexp(t, `(?m)^\S+ +ada +discard +1 +topic labour.completed; until `, o.run(cli.ExitOK, "outbox", "audit"))
	o.run(cli.ExitOK, "outbox", "topic", "resume", "labour.completed")
	o.exec(`delete from {schema}.outbox_failed`)
	o.publish("labour.completed", "key")

	assert.Equal(t, "16 shards\n", o.run(cli.ExitOK, "outbox", "shards"))
	assert.Contains(t, o.run(cli.ExitUsage, "outbox", "shards", "0"), "want 1 to 256")
	assert.Contains(t, o.run(cli.ExitFailed, "outbox", "shards", "4", "--timeout", "2s"), "is a relay running?")
	o.exec(`delete from {schema}.outbox`)
	assert.Contains(t, o.run(cli.ExitOK, "outbox", "shards", "4"), "4 shards\n")
}

func TestUsageOfCommands(t *testing.T) {
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"migrate"}, cli.ExitUsage, "millrace migrate: the command is missing: want down, grants, print, status or up\nRun \"millrace migrate -h\" for usage.\n"},
		{[]string{"migrate", "sideways"}, cli.ExitUsage, `unknown command "sideways"`},
		{[]string{"migrate", "sideways", "-o", "json"}, cli.ExitUsage, `unknown command \"sideways\" for \"millrace migrate\"`},
		{[]string{"sideways", "--dsn=x"}, cli.ExitUsage, `unknown command "sideways" for "millrace"`},
		{[]string{"--dsn=x", "migrate", "sideways", "--nonsense"}, cli.ExitUsage, `unknown command "sideways" for "millrace migrate"`},
		{[]string{"migrate", "--nonsense"}, cli.ExitUsage, "unknown flag: --nonsense"},
		{[]string{"outbox", "status", "--nonsense"}, cli.ExitUsage, "unknown flag: --nonsense"},
		{[]string{"relay", "--broker=kafka", "--dsn=x"}, cli.ExitUsage, "--brokers"},
		{[]string{"outbox", "status", "-h"}, cli.ExitOK, "--schema"},
		{[]string{"help", "dev"}, cli.ExitOK, "--services"},
		{[]string{"relay"}, cli.ExitUsage, `--broker is "": want pubsub or kafka`},
		{[]string{"outbox", "status", "--dsn=nonsense://"}, cli.ExitUsage, "--dsn"},
		{[]string{"outbox", "status", "--dsn=postgres://127.0.0.1:1/x"}, cli.ExitFailed, "no PostgreSQL answers at 127.0.0.1:1: connection refused\nStart it, or name another one by --dsn,"},
		{[]string{"migrate", "print", "--from=0", "--schema=no-good"}, cli.ExitUsage, "want 1 to 48"},
		{[]string{"migrate", "print", "--from=0"}, cli.ExitOK, `create table "millrace".outbox (`},
	} {
		var output bytes.Buffer
		assert.Equal(t, test.code, run(test.args, os.Stdin, &output, &output), "%v: %s", test.args, &output)
		assert.Contains(t, output.String(), test.says)
	}
	// What can be told without a database is told without one.
	for line, says := range map[string]string{
		"outbox list --state=bogus": `--state is "bogus"`, "outbox list --limit=0": "--limit is 0", "outbox purge": "--older-than is missing", "outbox shards x": `the number of shards is "x"`,
		"outbox replay": "want --topic, --key, --all or --resume", "outbox replay --topic=t --all": "--all cannot be combined with", "outbox replay --all --rate=-1": "--rate is -1",
		"outbox replay --all --since=2h --until=3h": ": want a time before --until, which is ", "outbox replay --all --since=soon": "want a time such as", "outbox replay --resume=1 --to=x": "--resume cannot be combined with",
		"dead list --state=bogus": `--state is "bogus"`, "dead audit --limit=0": "--limit is 0", "dead purge": "--older-than is missing",
		"effect list --state=bogus": `--state is "bogus"`, "explain x --due=bad": `--due is "bad"`,
		"migrate up --component=bogus": `--component is "bogus"`, "migrate down": "want --component and --to", "migrate print --component=bogus": `--component is "bogus"`,
	} {
		var output bytes.Buffer
		assert.Equal(t, cli.ExitUsage, run(append(strings.Fields(line), "--dsn=postgres://127.0.0.1:1/x"), os.Stdin, &output, &output), line)
		assert.Contains(t, output.String(), says, line)
	}
}

// The relay as a process: it forwards, and ends by SIGTERM.
func TestRelayCommand(t *testing.T) {
	stack := devtest.Start(t, devstack.PubSub, devstack.Kafka)
	assert.Contains(t, newOperator(t).run(cli.ExitUsage, "relay", "--broker=kafka", "--brokers=nowhere"),
		`--brokers: kafka.brokers has "nowhere"`)
	for broker, flag := range map[string]string{
		"pubsub": "--project=" + devtest.Project(t),
		"kafka":  "--brokers=" + strings.Join(stack.KafkaBrokers(), ","),
	} {
		t.Run(broker, func(t *testing.T) {
			o := newOperator(t)
			o.run(cli.ExitOK, "migrate", "up")
			o.publish(devtest.Topic(t), "key")
			command, output := millrace(t, "relay", "--broker", broker, flag, "--schema", o.schema, "--json")
			command.Env = append(command.Env, "PUBSUB_EMULATOR_HOST="+stack.PubSubHost(), "DATABASE_URL="+o.dsn)
			require.NoError(t, command.Start())
			assert.Eventually(t, func() bool {
				var left int
				require.NoError(t, o.pool.QueryRow(t.Context(), `select count(*) from `+o.schema+`.outbox`).Scan(&left))
				return left == 0
			}, time.Minute, 20*time.Millisecond, output)
			require.NoError(t, command.Process.Signal(syscall.SIGTERM))
			require.NoError(t, command.Wait(), output)
			assert.Contains(t, output.String(), `"msg":"relay has ended"`)
		})
	}
}
