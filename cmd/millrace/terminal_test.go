package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/cmd/millrace/internal/output"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
)

// look is what a person sees on a terminal.
func (o *operator) look(terminal output.Terminal, args ...string) string {
	o.t.Helper()
	var out bytes.Buffer
	a := &cli.App{Stdin: os.Stdin, Stdout: &out, Stderr: &out, Terminal: terminal}
	require.Less(o.t, execute(a, append(args, "--schema", o.schema, "--dsn", o.dsn)), cli.ExitUsage, "%v: %s", args, &out)
	return out.String()
}

// newSeen has something to show in every table.
func newSeen(t *testing.T) *operator {
	o := newDead(t)
	const long = "the record is larger than what the topic takes, and this is an error that no terminal has room for in one line"
	o.exec(`insert into {schema}.outbox_failed (state, event_id, topic, key, hash, shard, seq, headers, payload, created_at, attempts, reason, retry_at)
		select s, gen_random_uuid(), 'a.topic.with.a.rather.long.name', 'key-' || n, 7, 7, n, '{}', 'payload', now() - n * interval '3 days', 10, '` + long + `',
			case s when 'retrying' then now() + interval '1 hour' end
		from (values (1, 'dead'), (2, 'retrying'), (3, 'blocked'), (4, 'discarded')) v(n, s)`)
	o.exec(`update {schema}.claim_failed set event_id = gen_random_uuid(), error = '` + long + `' where event_id = 'e2'`)
	o.exec(`update {schema}.outbox_shard set deaths = array(select gen_random_uuid() from generate_series(1, 4)), suspect = gen_random_uuid()::text, suspect_deaths = array(select gen_random_uuid() from generate_series(1, 2)) where shard = 3`)
	o.publish("labour.completed", "key")
	ledger, err := effect.New(o.pool, effect.Config{Service: "labour", Schema: o.schema, Logger: quiet})
	require.NoError(t, err)
	defer ledger.Close()
	err = effect.Once(effect.With(t.Context(), ledger), "sms/"+outbox.NewID(), func(context.Context, string) error { return errors.New(long) })
	require.ErrorIs(t, err, effect.ErrInDoubt)
	o.run(cli.ExitOK, "dead", "replay", "e1", "--note", long)
	return o
}

var looks = [][]string{
	{"outbox", "status"},
	{"outbox", "status", "--shards"},
	{"outbox", "list"},
	{"outbox", "list", "--payload"},
	{"outbox", "check"},
	{"outbox", "shards"},
	{"dead", "list"},
	{"dead", "list", "--state", "all"},
	{"dead", "list", "--groups"},
	{"dead", "audit"},
	{"dead", "show", "e1"},
	{"effect", "list"},
	{"effect", "list", "--response"},
	{"migrate", "status"},
	{"retention", "status"},
	{"retention", "run", "--claims", "14d", "--effects", "30d"},
	{"explain", "e1"},
	{"explain", "nothing"},
	{"doctor"},
}

// What is to be copied, or is another's, is not broken.
var unbroken = regexp.MustCompile(`^(      millrace |  remedy )`)

func TestOutputFitsATerminal(t *testing.T) {
	t.Parallel()
	o := newSeen(t)
	for _, args := range looks {
		for line := range strings.Lines(o.look(output.Terminal{Width: 80}, args...)) {
			line = strings.TrimSuffix(line, "\n")
			if !unbroken.MatchString(line) {
				assert.LessOrEqual(t, utf8.RuneCountInString(line), 80, "%v: %s", args, line)
			}
		}
	}
}

// A pipe gets whole IDs and errors, and no colours.
func TestPipesArePlain(t *testing.T) {
	t.Parallel()
	o := newSeen(t)
	coloured := 0
	for _, args := range looks {
		piped := o.look(output.Terminal{}, args...)
		assert.NotContains(t, piped, "\x1b", args)
		assert.NotContains(t, piped, "…", args)
		plain := o.look(output.Terminal{Width: 80}, args...)
		assert.NotContains(t, plain, "\x1b", "%v: where NO_COLOR is set", args)
		if strings.Contains(o.look(output.Terminal{Width: 80, Colour: true}, args...), "\x1b[") {
			coloured++
		}
	}
	assert.Greater(t, coloured, 15)
	assert.Contains(t, o.look(output.Terminal{Width: 80, Colour: true}, "outbox", "list"), "\x1b[31mdead\x1b[0m")
	assert.Contains(t, o.look(output.Terminal{Width: 80, Colour: true}, "outbox", "list"), "\x1b[33mretrying, in ")
	assert.Contains(t, o.look(output.Terminal{Width: 80}, "dead", "list"), "Not shown: ")
}

// An event is found by what a terminal shows of its ID, by its beginning and by its end.
func TestAbbreviatedIDs(t *testing.T) {
	t.Parallel()
	o := newDead(t)
	const one, other, third = "0198c0de-0000-7000-8000-00000000a111", "0198c0de-0000-7000-8000-00000000b222", "0198c0df-0000-7000-8000-00000000c333"
	for id, event := range map[string]string{one: "e1", other: "e2", third: "e3"} {
		o.exec(`update {schema}.claim_failed set event_id = '` + id + `' where event_id = '` + event + `'`)
		o.exec(`insert into {schema}.outbox_failed (state, event_id, topic, key, hash, shard, seq, headers, payload, created_at)
			values ('dead', '` + id + `', 't', '', 7, 7, 1, '{}', '', now())`)
	}
	for text, id := range map[string]string{
		"0198c0de…a111": one, "0198c0de...b222": other, "0198C0DE..B222": other, "a111": one, "…b222": other, "0198c0df": third, "0198C0DF-…": third, one: one,
	} {
		assert.Contains(t, o.run(cli.ExitOK, "dead", "show", text, "--consumer", "notify"), "event     "+id+"\n", text)
		assert.Contains(t, o.run(cli.ExitOK, "explain", text), "event   "+id+"\n", text)
	}
	assert.Contains(t, o.look(output.Terminal{Width: 80}, "dead", "list"), "\n0198c0de…a111  notify ")
	const ambiguous = "the event ID 0198c0de is ambiguous; it can mean:\n  " + one + "\n  " + other + "\n"
	for _, command := range []string{"dead show", "dead edit --payload=x", "dead replay", "dead discard", "outbox retry", "outbox discard", "explain"} {
		words := strings.Fields(command)
		assert.Equal(t, "millrace "+strings.Join(words[:min(len(words), 2)], " ")+": "+ambiguous, o.run(cli.ExitFailed, append(words, "0198c0de")...))
	}
	assert.Equal(t, "1 event will be retried by a running relay.\n", o.run(cli.ExitOK, "outbox", "retry", "0198c0de…a111"))
	assert.Contains(t, o.run(cli.ExitFailed, "outbox", "retry", "0198c0d0"), "no such event")
	assert.Contains(t, o.run(cli.ExitFailed, "dead", "replay", "e"), "no such event", "other IDs are not abbreviated")

	o.exec(`update {schema}.claim_failed set event_id = 'cafe' where event_id = '` + third + `'`)
	o.exec(`update {schema}.claim_failed set event_id = 'cafe0000-0000-7000-8000-000000000000' where event_id = '` + other + `'`)
	assert.Contains(t, o.run(cli.ExitOK, "dead", "show", "cafe"), "event     cafe\n", "an ID that looks like an abbreviation")
}

// "explain" finds an event that is completed, too: by its beginning, for which the index serves.
func TestAbbreviatedIDOfACompletedEvent(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	id := outbox.NewID()
	o.exec(`insert into {schema}.consumer (name) values ('notify')`)
	o.exec(`insert into {schema}.processed (event_id, consumer) values ('` + id + `', 1)`)
	for _, short := range []string{id[:8] + "…" + id[32:], id[:13] + ".." + id[32:], id[:20], strings.ToUpper(id[:8]) + "…" + id[32:]} {
		assert.Contains(t, o.run(cli.ExitOK, "explain", short), "event   "+id+"\n", short)
	}
	assert.Contains(t, o.run(cli.ExitFailed, "explain", id[:6]+"…"+id[32:]), "no known event has a short ID like "+id[:6]+"…"+id[32:]+`: run "millrace dead list" or "millrace outbox list" to see which there are`)
	assert.Contains(t, o.run(cli.ExitFailed, "explain", "00000000…0000"), "no known event has a short ID like ")
}

// What takes longer than a second is told on a terminal while it does, and is wiped away before the result.
func TestProgressOnATerminal(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	tx, err := o.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }() // when the test has failed
	_, err = tx.Exec(t.Context(), `lock table `+o.schema+`.outbox`)
	require.NoError(t, err)

	var seen, piped buffer
	var running sync.WaitGroup
	for _, a := range []*cli.App{
		{Stdin: os.Stdin, Stdout: &seen, Stderr: &seen, Terminal: output.Terminal{Width: 80}, ErrTerminal: output.Terminal{Width: 80}},
		{Stdin: os.Stdin, Stdout: &piped, Stderr: &piped},
	} {
		running.Go(func() {
			assert.Equal(t, cli.ExitOK, execute(a, []string{"outbox", "status", "--schema", o.schema, "--dsn", o.dsn}))
		})
	}
	seen.await(t, "\r\x1b[Kmillrace outbox status … ")
	require.NoError(t, tx.Rollback(t.Context()))
	running.Wait()
	assert.Regexp(t, `s\r\x1b\[Kpending  none\n`, seen.String())
	assert.Regexp(t, `^pending  none\n`, piped.String())
}

func TestVersion(t *testing.T) {
	t.Parallel()
	assert.Regexp(t, `^millrace \S+ \(.*go1\.\S+ \w+/\w+\)\n$`, says(t, cli.ExitOK, "--version"))
	got := versionOf(&debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Version: "v0.1.0"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "8552ac4aaaaaaaaaaaaaaaaaaaaa"}, {Key: "vcs.modified", Value: "true"},
	}})
	assert.Regexp(t, `^v0\.1\.0 \(revision 8552ac4aaaaa with local changes, go1\.26\.0 \w+/\w+\)$`, got)
}

func eachCommand(c *cobra.Command, do func(c *cobra.Command)) {
	do(c)
	for _, sub := range c.Commands() {
		eachCommand(sub, do)
	}
}

// Each command that does something has examples, and they can be run.
func TestExamples(t *testing.T) {
	t.Parallel()
	eachCommand(rootCommand(&cli.App{}), func(c *cobra.Command) {
		if c.HasSubCommands() || !c.Runnable() {
			return
		}
		require.NotEmpty(t, c.Example, c.CommandPath())
		for line := range strings.Lines(c.Example) {
			require.True(t, strings.HasPrefix(line, "  "), line)
			commands := regexp.MustCompile(`millrace [^|]*`).FindAllString(line, -1)
			require.Len(t, commands, 1, line)
			assert.True(t, strings.HasPrefix(commands[0], c.CommandPath()), "%s: %s", c.CommandPath(), line)
			runs(t, strings.TrimSpace(commands[0]))
		}
	})
}

func TestHelpFitsATerminal(t *testing.T) {
	t.Parallel()
	eachCommand(rootCommand(&cli.App{}), func(c *cobra.Command) {
		for line := range strings.Lines(says(t, cli.ExitOK, append(strings.Fields(c.CommandPath())[1:], "--help")...)) {
			line = strings.TrimSuffix(line, "\n")
			if !strings.HasPrefix(line, "  millrace ") && !strings.HasPrefix(line, "  jq ") { // which is to be copied
				assert.LessOrEqual(t, utf8.RuneCountInString(line), 80, "%s: %s", c.CommandPath(), line)
			}
		}
	})
}
