package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/internal/explain"
	"github.com/millrace-go/millrace/internal/reach"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

var quiet = slog.New(slog.DiscardHandler)

// explained puts events into each state that one can be in.
type explained struct {
	*operator
	events *outbox.Publisher
	names  []string // old and new, for a strings.Replacer
}

func newExplained(t *testing.T) *explained {
	x := &explained{operator: newOperator(t)}
	x.run(cli.ExitOK, "migrate", "up")
	var err error
	x.events, err = outbox.NewPublisher(outbox.PublisherConfig{Schema: x.schema})
	require.NoError(t, err)
	x.names = []string{reach.Quoted(reach.WithoutPassword(x.dsn)), "DSN", x.schema, "SCHEMA"}
	return x
}

// id mints an event that is called by the name in what the command says.
func (x *explained) id(name string) string {
	id := outbox.NewID()
	x.names = append(x.names, id, "<"+name+">")
	return id
}

// publish writes an event to the outbox.
func (x *explained) publish(name, topic, key string, delay time.Duration) string {
	id := x.id(name)
	require.NoError(x.t, pgtx.Run(x.t.Context(), x.pool, func(ctx context.Context, _ pgx.Tx) error {
		msg := message.NewMessageWithContext(ctx, id, []byte("payload"))
		transport.SetKey(msg, key)
		msg.Metadata.Set("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
		outbox.SetDeliverAfter(msg, delay)
		return x.events.Publish(topic, msg)
	}))
	return id
}

// deliver has a consumer handle an event, as the broker would deliver it.
func (x *explained) deliver(consumer, id, key string, h func(context.Context) error) {
	msg := message.NewMessage(id, []byte("payload"))
	transport.SetKey(msg, key)
	x.consume(claim.Config{Consumer: func(string) string { return consumer }, Ordered: key != ""}, msg, h)
}

func (x *explained) consume(cfg claim.Config, msg *message.Message, h func(context.Context) error) {
	cfg.MaxAttempts, cfg.Logger = 3, quiet
	cfg.Service = "labour"
	c, err := claim.New(claim.NewPostgresStore(x.pool, claim.Schema(x.schema)), cfg)
	require.NoError(x.t, err)
	_, _ = c.Middleware(func(msg *message.Message) ([]*message.Message, error) { return nil, h(msg.Context()) })(msg)
}

func handled(context.Context) error { return nil }
func fails(context.Context) error   { return errors.New("no user 7") }
func never(context.Context) error   { return claim.Permanent(errors.New("no such labour")) }

// relay runs a relay until the test's end.
func (x *explained) relay(attempts int, publish func(topic, key string) error) (end func()) {
	relay, err := outbox.NewRelay(x.pool, publisherFunc(publish), outbox.RelayConfig{Schema: x.schema, Archive: time.Hour, MaxAttempts: attempts, Logger: quiet})
	require.NoError(x.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(x.t, relay.Run(ctx)) })
	return func() { cancel(); running.Wait() }
}

type publisherFunc func(topic, key string) error

func (f publisherFunc) Publish(topic string, msgs ...*message.Message) error {
	return f(topic, transport.Key(msgs[0]))
}
func (publisherFunc) Close() error { return nil }

// located waits until the outbox has the event in the state.
func (x *explained) located(id, state string) {
	x.t.Helper()
	require.Eventually(x.t, func() bool {
		found, err := outboxadmin.Find(x.t.Context(), x.pool, x.schema, id)
		return err == nil && len(found) == 1 && found[0].State == state && found[0].Command == ""
	}, time.Minute, 10*time.Millisecond, state)
}

var normal = []struct {
	pattern *regexp.Regexp
	text    string
}{
	{regexp.MustCompile(`\(20[0-9TZ:-]+\)`), "(TIME)"},
	{regexp.MustCompile(`since 20[0-9-]+`), "since DAY"},
	{regexp.MustCompile(`in ([0-9dhm]+s?|<1s) \(TIME`), "in A-WHILE (TIME"},
	{regexp.MustCompile(`(just now|[0-9dhms]+ ago) \(TIME`), "A-WHILE ago (TIME"},
	{regexp.MustCompile(`Session \d+ is handling it \([^)]*\)`), "Session PID is handling it (CLIENT)"},
	{regexp.MustCompile(`(R|r)elay \S+ holds its shard \d+`), "${1}elay NAME holds its shard N"},
	{regexp.MustCompile(`by relay [^ ,]+`), "by relay NAME"},
	{regexp.MustCompile(`holds its shard \d+`), "holds its shard N"},
	{regexp.MustCompile(` +`), " "},
}

// explain is what the command says of an event, without what differs from run to run.
func (x *explained) explain(said *strings.Builder, title string, code int, args ...string) {
	x.t.Helper()
	text := strings.NewReplacer(x.names...).Replace(x.run(code, append([]string{"explain"}, args...)...))
	for _, n := range normal {
		text = n.pattern.ReplaceAllString(text, n.text)
	}
	said.WriteString("== " + title + "\n" + text + "\n")
}

// What it says of an event in each state; testdata/explain.txt is written anew where MILLRACE_UPDATE is set.
func TestExplain(t *testing.T) {
	t.Parallel()
	x := newExplained(t)
	said := &strings.Builder{}
	x.inOutbox(said)
	x.withConsumers(said)
	x.outputs(said)
	x.effects(said)

	x.explain(said, "nothing is known about it", cli.ExitFailed, x.id("unknown"))
	const golden = "testdata/explain.txt"
	if os.Getenv("MILLRACE_UPDATE") != "" {
		require.NoError(t, os.WriteFile(golden, []byte(said.String()), 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	assert.Equal(t, string(want), said.String())
}

func (x *explained) inOutbox(said *strings.Builder) {
	staged := x.id("staged")
	require.NoError(x.t, pgtx.Run(x.t.Context(), x.pool, func(ctx context.Context, _ pgx.Tx) error {
		require.NoError(x.t, x.events.Publish("taken", message.NewMessageWithContext(ctx, staged, nil)))
		require.NoError(x.t, pgtx.Flush(ctx))
		x.explain(said, "written, and not committed", cli.ExitFailed, staged)
		return nil
	}))
	x.exec(`delete from {schema}.outbox`)
	waiting := x.publish("waiting", "taken", "w", 0)
	x.explain(said, "in the outbox, and no relay runs", cli.ExitOK, waiting)
	delayed := x.publish("delayed", "taken", "", time.Hour)
	x.explain(said, "delayed", cli.ExitOK, delayed)
	x.exec(`update {schema}.outbox_delayed set due_at = now() - interval '5 minutes'`)
	x.explain(said, "delayed, and no relay runs when it is due", cli.ExitOK, delayed)
	x.exec(`delete from {schema}.outbox_delayed`)

	release := make(chan struct{})
	var tried atomic.Bool
	end := x.relay(1000, func(topic, key string) error {
		switch topic {
		case "slow":
			<-release
		case "refused":
			return transport.ErrRejected
		case "failing":
			if key == "f" { // others of the topic go through afterwards, or it would be an outage
				tried.Store(true)
				return errors.New("try\nagain")
			}
		}
		return nil
	})
	x.located(waiting, "archived")
	x.explain(said, "published, and no consumer has it", cli.ExitOK, waiting)
	slow := x.publish("slow", "slow", "s", 0)
	require.Eventually(x.t, func() bool {
		found, err := outboxadmin.Find(x.t.Context(), x.pool, x.schema, slow)
		return err == nil && found[0].Held
	}, time.Minute, 10*time.Millisecond)
	x.explain(said, "being published", cli.ExitOK, slow)
	refused := x.publish("refused", "refused", "r", 0)
	x.located(refused, "dead")
	x.explain(said, "dead in the outbox", cli.ExitOK, refused)
	behind := x.publish("behind", "taken", "r", 0)
	x.located(behind, "blocked")
	x.explain(said, "blocked by a dead event of its key", cli.ExitOK, behind)
	x.run(cli.ExitOK, "outbox", "discard", refused)
	x.located(refused, "discarded")
	x.explain(said, "discarded", cli.ExitOK, refused)
	close(release)
	x.located(slow, "archived")
	retried := x.publish("retried", "failing", "f", 0)
	require.Eventually(x.t, tried.Load, time.Minute, 10*time.Millisecond)
	x.publish("other", "failing", "o", 0)
	x.located(retried, "retrying")
	end()
	x.exec(`update {schema}.outbox_failed set retry_at = now() + interval '1 minute', attempts = 2 where state = 'retrying'`)
	x.explain(said, "to be published again", cli.ExitOK, retried)
	x.exec(`update {schema}.outbox_failed set retry_at = now() - interval '5 minutes' where state = 'retrying'`)
	x.explain(said, "to be published again, and no relay runs when it is due", cli.ExitOK, retried)
	next := x.publish("next", "failing", "f", 0)
	x.explain(said, "in the outbox, blocked by one of its key", cli.ExitOK, next)
	x.run(cli.ExitOK, "outbox", "retry", retried)
	x.explain(said, "an operator's command is not carried out", cli.ExitOK, retried)
}

func (x *explained) withConsumers(said *strings.Builder) {
	x.deliver("bill", outbox.NewID(), "", handled) // the consumer is there
	done := x.id("done")
	x.deliver("notify", done, "", handled)
	x.explain(said, "completed by one consumer", cli.ExitOK, done)
	begun, release := make(chan struct{}), make(chan struct{})
	held := x.id("held")
	var running sync.WaitGroup
	running.Go(func() {
		x.deliver("notify", held, "", func(context.Context) error { close(begun); <-release; return nil })
	})
	<-begun
	x.explain(said, "in flight", cli.ExitOK, held)
	close(release)
	running.Wait()

	failing := x.id("failing")
	x.deliver("notify", failing, "", fails)
	x.deliver("notify", failing, "", fails)
	x.explain(said, "failing at the broker", cli.ExitOK, failing)
	x.deliver("notify", failing, "", fails)
	x.explain(said, "failed too often", cli.ExitOK, failing)
	x.run(cli.ExitOK, "dead", "replay", failing)
	x.explain(said, "replayed, and no consumer runs", cli.ExitOK, failing)
	dead := x.id("dead")
	x.deliver("notify", dead, "k", never)
	x.explain(said, "a dead letter for good", cli.ExitOK, dead)
	blocked := x.id("blocked")
	x.deliver("notify", blocked, "k", handled)
	x.explain(said, "blocked by a dead letter of its key", cli.ExitOK, blocked)
	x.run(cli.ExitOK, "dead", "discard", dead, "--actor", "ada", "--note", "test data")
	x.explain(said, "a dead letter that was discarded", cli.ExitOK, dead)
	later := x.publish("later", "taken", "k", 0)
	x.explain(said, "in the outbox, and its key is blocked at a consumer", cli.ExitOK, later)

	killer := x.id("killer")
	record, err := uuid.Parse(killer)
	require.NoError(x.t, err)
	_, err = x.pool.Exec(x.t.Context(), `insert into `+x.schema+`.claim_start select id, $1, 1, 2 from `+x.schema+`.consumer where name = 'labour/notify'`, record)
	require.NoError(x.t, err)
	x.explain(said, "its process was killed", cli.ExitOK, killer)

	old := x.id("old")
	x.exec(`update {schema}.consumer set floor = now() where name = 'labour/notify'`)
	x.explain(said, "older than the retention watermark", cli.ExitFailed, old)
	x.deliver("notify", old, "", handled)
	x.explain(said, "delivered all the same", cli.ExitOK, old)
	x.exec(`update {schema}.consumer set floor = null`)
}

// outputs are published by handlers: one waits, one was sent, one is the event itself, passed on.
func (x *explained) outputs(said *strings.Builder) {
	cause, early, late := x.id("cause"), x.id("early"), x.id("late")
	publish := func(ctx context.Context, topic, id string) error {
		msg := message.NewMessageWithContext(ctx, id, nil)
		msg.Metadata.Set(outbox.CauseMetadata, "of what was copied")
		return x.events.Publish(topic, msg)
	}
	x.deliver("notify", cause, "", func(ctx context.Context) error { return publish(ctx, "early", early) })
	end := x.relay(3, func(string, string) error { return nil })
	x.located(early, "archived")
	end()
	x.deliver("bill", cause, "", func(ctx context.Context) error {
		return errors.Join(publish(ctx, "late", late), publish(ctx, "passed", cause))
	})
	x.explain(said, "its handlers have published", cli.ExitOK, cause)
	x.explain(said, "published by a handler", cli.ExitOK, late)
	buried := x.id("buried")
	x.consume(claim.Config{Consumer: func(string) string { return "notify" }, DeadLetterTopic: "dead"}, message.NewMessage(buried, nil), never)
	x.explain(said, "a dead letter, with a copy for a topic", cli.ExitOK, buried)
}

func (x *explained) effects(said *strings.Builder) {
	ledger, err := effect.New(x.pool, effect.Config{Service: "labour", Schema: x.schema, Logger: quiet})
	require.NoError(x.t, err)
	defer ledger.Close()
	calls := x.id("calls")
	call := func(ctx context.Context, key string, answer error) error {
		return effect.Once(effect.With(ctx, ledger), key+":"+calls, func(context.Context, string) error { return answer })
	}
	x.deliver("notify", calls, "", func(ctx context.Context) error {
		assert.NoError(x.t, call(ctx, "mail", nil))
		assert.Error(x.t, call(ctx, "push", effect.NotDone(errors.New("no such device"))))
		return call(ctx, "sms", errors.New("a time\nout"))
	})
	_ = effect.Once(effect.With(outbox.WithCause(x.t.Context(), calls), ledger), "fax:"+calls, func(context.Context, string) error {
		x.explain(said, "effects: done, not done, in doubt, running", cli.ExitOK, calls)
		return nil
	})
}

func TestExplainUsage(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	assert.Contains(t, o.run(cli.ExitFailed, "explain", "e1"), `run "millrace migrate up"`)
	assert.Contains(t, o.run(cli.ExitUsage, "explain", "e1", "--due", "soon"), "want a time")
	assert.Contains(t, o.run(cli.ExitUsage, "explain"), "EVENT-ID is missing, for example: millrace explain 0198c0de…3f2a\n")
	assert.Contains(t, o.run(cli.ExitUsage, "explain", ""), "the event ID is empty")
	var told struct{ Command, Error string }
	require.NoError(t, json.Unmarshal([]byte(o.run(cli.ExitFailed, "explain", "e1", "-o", "json")), &told), "errors are JSON, too")
	assert.Equal(t, "millrace explain", told.Command)
	assert.Contains(t, told.Error, `run "millrace migrate up"`)
}

// What the command tells people to run can be run: there is such a command, and it takes these flags and arguments.
func TestRemediesCanBeRun(t *testing.T) {
	t.Parallel()
	said, err := os.ReadFile("testdata/explain.txt")
	require.NoError(t, err)
	commands := regexp.MustCompile(`(?m)^ (millrace .*)$`).FindAllStringSubmatch(string(said), -1)
	assert.Greater(t, len(commands), 20)
	for _, c := range commands {
		runs(t, c[1])
	}
	alerts, err := os.ReadFile("../../docs/alerts.yml")
	require.NoError(t, err)
	named := regexp.MustCompile(`millrace( [^\s;,."]+)+`).FindAllString(string(alerts), -1)
	assert.Greater(t, len(named), 5)
	for _, c := range named {
		runs(t, c)
	}
}

func runs(t *testing.T, line string) {
	t.Helper()
	command, args, err := rootCommand(&cli.App{}).Find(split(line)[1:])
	require.NoError(t, err, line)
	require.False(t, command.HasSubCommands(), line)
	require.NoError(t, command.ParseFlags(args), line)
	require.NoError(t, command.ValidateArgs(command.Flags().Args()), line)
}

// split is what a shell makes of a line that is not more difficult than this.
func split(line string) (words []string) {
	line, _, _ = strings.Cut(line, " #")
	line, _, _ = strings.Cut(line, " > ")
	for _, word := range regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`).FindAllString(line, -1) {
		words = append(words, strings.Trim(word, `'"`))
	}
	return words
}

// A delayed event that was delivered has its record under the time when it was due.
func TestExplainDelayed(t *testing.T) {
	t.Parallel()
	x := newExplained(t)
	id, due := x.id("delayed"), time.Now().Add(time.Minute).UTC().Format("2006-01-02T15:04:05.000000Z")
	c, err := claim.New(claim.NewPostgresStore(x.pool, claim.Schema(x.schema)), claim.Config{Service: "labour", Consumer: func(string) string { return "notify" }, Logger: quiet})
	require.NoError(t, err)
	msg := message.NewMessage(id, nil)
	msg.Metadata.Set(outbox.DueMetadata, due)
	_, err = c.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })(msg)
	require.NoError(t, err)
	assert.Contains(t, x.run(cli.ExitFailed, "explain", id), "--due")
	assert.Contains(t, x.run(cli.ExitOK, "explain", id, "--due", due), "claim labour/notify")
	var e explain.Explanation
	require.NoError(t, json.Unmarshal([]byte(x.run(cli.ExitOK, "explain", id, "--due", due, "-o", "json")), &e))
	assert.True(t, e.Known)
	assert.Equal(t, "completed", e.Stages[2].State)
}

// An event that is kept has a record as if it had been processed. By that record, as doctor tells it, or by its UUID in
// another spelling, it was called completed.
func TestExplainByOtherNames(t *testing.T) {
	t.Parallel()
	x := newExplained(t)
	id, canonical := outbox.NewID(), uuid.NewString()
	x.deliver("notify", id, "", never)
	x.deliver("notify", "order-1", "", never)
	x.deliver("notify", strings.ToUpper(canonical), "", never)
	var record string
	require.NoError(t, x.pool.QueryRow(t.Context(), `select record::text from `+x.schema+`.claim_failed where event_id = 'order-1'`).Scan(&record))
	for name, event := range map[string]string{
		strings.ToUpper(id): id, "{" + id + "}": id, strings.ReplaceAll(id, "-", ""): id,
		record: "order-1", strings.ToUpper(canonical): canonical,
	} {
		said := x.run(cli.ExitOK, "explain", name)
		assert.Contains(t, said, "event   "+event+"\n")
		assert.Regexp(t, `claim labour/notify: dead\n`, said)
		assert.Contains(t, said, event+"\n", "what is to be run names the event itself")
	}
	loud := strings.ToUpper(outbox.NewID())
	x.deliver("notify", loud, "", never)
	x.run(cli.ExitOK, "dead", "discard", loud)
	assert.Regexp(t, `claim labour/notify: discarded\n`, x.run(cli.ExitOK, "explain", loud))
	published := x.publish("published", "taken", "", 0)
	assert.Regexp(t, `outbox: pending\n`, x.run(cli.ExitOK, "explain", strings.ToUpper(published)))
}
