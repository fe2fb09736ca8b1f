package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

func newDead(t *testing.T) *operator {
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	o.exec(`insert into {schema}.consumer (name) values ('notify'), ('bill')`)
	o.exec(`insert into {schema}.claim_failed (consumer, record, event_id, key, state, attempts, reason, error, history, handler, topic, headers, payload)
		select c, gen_random_uuid(), e, k, s, 3, r, x, '[{"at": "2026-01-02T03:04:05Z", "by": "host/1", "error": "first"}]', 'h', 'labour.completed',
			convert_to('{"uuid": "' || e || '", "metadata": {"trace": "t-1"}}', 'UTF8'), p
		from (values (1, 'e1', '', 'dead', 'attempts', E'no user 7\nat all', convert_to('{"a": 1}', 'UTF8')),
			(1, 'e2', 'k', 'dead', 'attempts', E'no user 8\nat all', '\x1b5b00'), (1, 'e3', 'k', 'blocked', 'blocked', '', 'x'),
			(2, 'e1', '', 'retrying', 'error', 'oops', 'y')) v(c, e, k, s, r, x, p)`)
	o.exec(`insert into {schema}.claim_key values (1, 'k')`)
	return o
}

func TestDeadList(t *testing.T) {
	t.Parallel()
	o := newDead(t)
	out := o.run(cli.ExitOK, "dead", "list")
	assert.Regexp(t, `^EVENT +CONSUMER +KEY +STATE +TRIES +AGE +GROUP +ERROR\n`, out)
	assert.Regexp(t, `e1 +notify +- +dead +3 +\S+ +[0-9a-f]{8} +no user 7\\nat all\n`, out)
	assert.NotContains(t, out, "e3")
	assert.Regexp(t, `e3 +notify +k +blocked +3 `, o.run(cli.ExitOK, "dead", "list", "--state", "all"))
	assert.Regexp(t, `^EVENT.*\ne1 +bill +- +retrying +3 .*oops\n$`, o.run(cli.ExitOK, "dead", "list", "--state", "retrying"))
	assert.Equal(t, "No event matches --consumer bill --state dead. To list all, run: millrace dead list --state all\n", o.run(cli.ExitOK, "dead", "list", "--consumer", "bill"))
	assert.Equal(t, "No event matches --group x --state dead. To list all, run: millrace dead list --groups --state all\n", o.run(cli.ExitOK, "dead", "list", "--groups", "--group", "x"))
	assert.Equal(t, "No event matches --consumer bill --state blocked. To list all, run: millrace dead list --state all\n", o.run(cli.ExitOK, "dead", "list", "--state", "blocked", "--consumer", "bill"))
	assert.Contains(t, o.run(cli.ExitUsage, "dead", "list", "--state", "lost"), "--state is \"lost\": want dead, retrying, blocked or all\n")
	assert.Contains(t, o.run(cli.ExitUsage, "dead", "list", "--limit", "0"), "want 1 or more")

	var groups []deadletter.ErrorGroup
	require.NoError(t, json.Unmarshal([]byte(o.run(cli.ExitOK, "dead", "list", "--groups", "--json")), &groups))
	require.Len(t, groups, 1)
	assert.Equal(t, 2, groups[0].Events)
	assert.Regexp(t, groups[0].Group+` +2 +\S+ +\S+ +notify +no user <n>\\nat all\n`, o.run(cli.ExitOK, "dead", "list", "--groups"))
	var found []deadletter.Event
	require.NoError(t, json.Unmarshal([]byte(o.run(cli.ExitOK, "dead", "list", "--json", "--group", groups[0].Group, "--consumer", "notify", "--key", "k")), &found))
	require.Len(t, found, 1)
	assert.Equal(t, "e2", found[0].EventID)
	require.NoError(t, json.Unmarshal([]byte(o.run(cli.ExitOK, "dead", "list", "--json", "--state", "blocked")), &found))
	assert.Equal(t, "blocked", found[0].State, "JSON has the same words")
	assert.Equal(t, "[]\n", o.run(cli.ExitOK, "dead", "list", "--json", "--consumer", "nobody"))
}

func TestDeadShow(t *testing.T) {
	t.Parallel()
	o := newDead(t)
	out := o.run(cli.ExitOK, "dead", "show", "e1", "--consumer", "notify")
	for _, line := range []string{
		"event     e1\n", "state     dead, 3 attempts failed\n", "reason    It failed as often as claim.max_attempts allows.\n", "topic     labour.completed\n", "error     no user 7\nat all\n",
		"attempt   2026-01-02T03:04:05Z host/1: first\n", "header    trace=t-1\n", "payload   8 bytes\n{\"a\": 1}\n",
	} {
		assert.Contains(t, out, line)
	}
	o.exec(`update {schema}.claim_failed set history = history || jsonb_build_array(jsonb_build_object('at', '2026-01-02T03:04:06Z', 'by', 'host/1', 'error', error)) where event_id = 'e1'`)
	assert.Contains(t, o.run(cli.ExitOK, "dead", "show", "e1", "--consumer", "notify"), "attempt   2026-01-02T03:04:06Z host/1\n", "the last error is shown once")
	assert.Contains(t, o.run(cli.ExitOK, "dead", "show", "e2"), `\x1b[\x00`, "what would disturb a terminal is quoted")
	assert.Equal(t, "\x1b[\x00", o.run(cli.ExitOK, "dead", "show", "e2", "--raw"))
	assert.Contains(t, o.run(cli.ExitOK, "dead", "show", "e1"), "consumer  bill")
	assert.Contains(t, o.run(cli.ExitUsage, "dead", "show", "e1", "--raw"), "the event failed for several consumers: name one by --consumer\n")
	assert.Contains(t, o.run(cli.ExitFailed, "dead", "show", "e9"), `no consumer has failed to handle event "e9", or it was settled since: run "millrace dead list --state all" to see which events have failed`)
}

func TestDeadReplayAndDiscard(t *testing.T) {
	t.Parallel()
	o := newDead(t)
	assert.Contains(t, o.run(cli.ExitUsage, "dead", "replay"), "want event IDs, --consumer, --group, --key, --topic, --reason or --all")
	assert.Contains(t, o.run(cli.ExitUsage, "dead", "discard", "e1", "--all"), "--all cannot be combined with event IDs, --consumer, --group, --key, --topic or --reason\n")
	assert.Equal(t, "millrace dead replay: no such event: run \"millrace dead list\" to see which there are\n", o.run(cli.ExitFailed, "dead", "replay", "e9"))
	assert.Contains(t, o.run(cli.ExitFailed, "dead", "replay", "e3"), "no such event: run \"millrace dead list\" to see which there are\n1 event was not changed: in state blocked.\n")
	assert.Contains(t, o.run(cli.ExitUsage, "dead", "replay", "e3", "--state", "blocked"), "--state is \"blocked\": want dead, retrying or all\n")
	assert.Contains(t, o.run(cli.ExitUsage, "dead", "replay", "--all", "--since", "2026-01-02", "--until", "2026-01-01"), "--since is 2026-01-02T00:00:00Z: want a time before --until")
	for range 2 { // The first run changes nothing, so the second says the same.
		dry := o.run(cli.ExitOK, "dead", "replay", "--topic", "labour.completed", "--reason", "attempts", "--since", "1h", "--dry-run")
		assert.Regexp(t, `^GROUP +EVENTS .*\n[0-9a-f]{8} +2 .*no user <n>`, dry)
	}
	for _, other := range [][]string{{"--topic", "other"}, {"--reason", "panic"}, {"--topic", "labour.completed", "--until", "1h"}} {
		assert.Contains(t, o.run(cli.ExitFailed, append([]string{"dead", "replay"}, other...)...), "no such event", other)
	}
	out := o.run(cli.ExitOK, "dead", "replay", "e1", "--actor", "ada", "--note", "mended\x1b")
	assert.Equal(t, "1 event will be retried now.\n1 event was not changed: in state retrying.\n", out)
	o.exec(`update {schema}.claim_failed set state = 'dead' where event_id = 'e3'`)
	assert.Equal(t, "1 event will be retried now.\n1 of them is blocked by an earlier event of the same key.\n", o.run(cli.ExitOK, "dead", "replay", "e3"))
	var r deadletter.Result
	require.NoError(t, json.Unmarshal([]byte(o.run(cli.ExitOK, "dead", "discard", "--key", "k", "--state", "all", "--json")), &r))
	assert.Equal(t, deadletter.Result{Done: 2}, r)
	assert.Regexp(t, `^No dead letters\. .*\n2 events were not changed: in state retrying\.\n$`, o.run(cli.ExitOK, "dead", "replay", "--all"))
	audit := o.run(cli.ExitOK, "dead", "audit", "--event", "e1")
	assert.Regexp(t, `ada +replay +e1 +notify +mended\\x1b; was dead \(no user 7\\nat all\)\n`, audit)
	assert.NotContains(t, audit, "\x1b")
	assert.Regexp(t, cli.Somebody()+` +discard +e2 +notify`, o.run(cli.ExitOK, "dead", "audit"))
	assert.Contains(t, o.run(cli.ExitOK, "dead", "list", "--state", "all"), "e1")

	assert.Contains(t, o.run(cli.ExitUsage, "dead", "purge"), "--older-than is missing: want an age")
	o.exec(`update {schema}.claim_failed set state = 'dead', failed_at = now() - interval '91 days'`)
	assert.Contains(t, o.run(cli.ExitOK, "dead", "purge", "--older-than", "90d"), "2 dead letters discarded, 0 rows of the audit log deleted.\n")
}

func TestDeadRedirect(t *testing.T) {
	t.Parallel()
	o := newDead(t)
	assert.Contains(t, o.run(cli.ExitUsage, "dead", "redirect", "e1"), "want either --to with the consumer that gets the events")
	assert.Contains(t, o.run(cli.ExitFailed, "dead", "redirect", "--all", "--to", "nobody"), `no consumer of that name has run on this database: "nobody"`)
	o.exec(`update {schema}.claim_failed set record = 'ff000000-0000-0000-0000-000000000001' where event_id = 'e1' and consumer = 1`)
	o.exec(`insert into {schema}.processed (event_id, consumer) values ('ff000000-0000-0000-0000-000000000001', 2)`)
	assert.Equal(t, "2 events redirected.\n1 of them was only discarded, because the other consumer already had it.\n1 event was not changed: in state blocked.\n",
		o.run(cli.ExitOK, "dead", "redirect", "--consumer", "notify", "--to", "bill", "--note", "moved"))
	assert.Regexp(t, ` +redirect +e2 +notify +moved; to bill; was dead `, o.run(cli.ExitOK, "dead", "audit"))
	assert.Regexp(t, `e2 +bill +k +retrying, due `, o.run(cli.ExitOK, "dead", "list", "--state", "all"))
}

func TestDeadRedirectToATopic(t *testing.T) {
	t.Parallel()
	o := newDead(t)
	assert.Contains(t, o.run(cli.ExitUsage, "dead", "redirect", "e2", "--to", "bill", "--to-topic", "other"), "want either --to with the consumer that gets the events")
	assert.Contains(t, o.run(cli.ExitFailed, "dead", "redirect", "--topic", "labour.completed", "--to-topic", "labour.completed"), "want one that differs from Selection.Topic")
	assert.Equal(t, "1 event redirected.\n", o.run(cli.ExitOK, "dead", "redirect", "e2", "--to-topic", "other", "--note", "by hand"))
	assert.Regexp(t, ` +redirect +e2 +notify +by hand; to topic other; was dead `, o.run(cli.ExitOK, "dead", "audit"))
	assert.NotContains(t, o.run(cli.ExitOK, "dead", "list", "--state", "all"), "e2")
	var published string
	require.NoError(t, o.pool.QueryRow(t.Context(), `select topic || ' ' || event_id from `+o.schema+`.outbox`).Scan(&published))
	assert.Equal(t, "other e2", published)
}

func TestDeadEdit(t *testing.T) {
	t.Parallel()
	o := newDead(t)
	edit := func(code int, args ...string) string {
		return o.run(code, append([]string{"dead", "edit", "e1", "--consumer", "notify"}, args...)...)
	}
	show := func() string { return o.run(cli.ExitOK, "dead", "show", "e1", "--consumer", "notify") }
	assert.Contains(t, edit(cli.ExitOK, "--payload", `{"a": 2}`, "--set-header", "b=c=d", "--unset-header", "trace"), "The event was changed. Retry it: millrace dead replay --dsn ")
	assert.Contains(t, show(), "header    b=c=d\npayload   8 bytes\n{\"a\": 2}\n")
	assert.Contains(t, o.run(cli.ExitOK, "dead", "audit"), "changed the payload; set b; removed trace; was dead (no user 7\\nat all)\n")
	file := filepath.Join(t.TempDir(), "payload")
	require.NoError(t, os.WriteFile(file, []byte("from a file"), 0o600))
	edit(cli.ExitOK, "--payload-file", file)
	assert.Contains(t, show(), "from a file\n")
	assert.Contains(t, edit(cli.ExitUsage, "--payload-file", file, "--payload", ""), "--payload and --payload-file cannot be combined\n")
	assert.Contains(t, edit(cli.ExitUsage, "--set-header", "b"), "want NAME=VALUE")
	assert.Contains(t, edit(cli.ExitFailed, "--payload-file", file+".none"), "read the payload")
	assert.Contains(t, o.run(cli.ExitFailed, "dead", "edit", "e1", "--payload", "x"), "name one of them")
}

func TestDeadEditInAnEditor(t *testing.T) {
	o := newDead(t)
	edit := func(code int, editor string) string {
		t.Setenv("VISUAL", editor)
		return o.run(code, "dead", "edit", "e1", "--consumer", "notify")
	}
	assert.Contains(t, edit(cli.ExitOK, "true"), "Nothing was changed.\n")
	assert.Contains(t, edit(cli.ExitOK, `f() { test "${1##*/}" = payload.json && echo '{"a": 3}' > "$1"; }; f`), "The event was changed. Retry it: ")
	assert.Contains(t, o.run(cli.ExitOK, "dead", "show", "e1", "--consumer", "notify"), "payload   8 bytes\n{\"a\": 3}\n")
	assert.Contains(t, edit(cli.ExitFailed, "false"), `run the editor "false"`)
	assert.Contains(t, o.run(cli.ExitUsage, "dead", "edit", "e2"), "the payload is not text: name a file by --payload-file\n")
}

// A list without events says which command lists more.
func TestDeadListOfNothing(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	assert.Equal(t, "No dead letters. To list events that are retried or blocked, too, run: millrace dead list --state all\n", o.run(cli.ExitOK, "dead", "list"))
	assert.Equal(t, "No dead letters. To list events that are retried or blocked, too, run: millrace dead list --groups --state all\n", o.run(cli.ExitOK, "dead", "list", "--groups"))
	assert.Equal(t, "No event has failed.\n", o.run(cli.ExitOK, "dead", "list", "--state", "all"))
}
