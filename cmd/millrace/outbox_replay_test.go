package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

func TestReplayCommand(t *testing.T) {
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	assert.Equal(t, "No such actions.\n", o.run(cli.ExitOK, "outbox", "audit"))
	assert.Contains(t, o.run(cli.ExitFailed, "outbox", "replay", "--all"), "the archive is empty: relays archive what they publish from now on if outbox.archive is set")
	o.exec(`select {schema}.outbox_archive_days('1 day');
		insert into {schema}.outbox_archive (published_at, shard, seq, event_id, topic, key, headers, payload, created_at)
		select clock_timestamp(), 0, n, 'e' || n, case when n % 2 = 0 then 'labour.completed' else 'other' end, 'k' || n % 3, '{}', '', now()
		from generate_series(1, 1000) n`)
	for flags, want := range map[string]string{
		"--topic labour.complete":                     `no archived event matches --topic labour.complete\nThe archive has events from \S+ to \S+. The topics of its latest events are: labour.completed, other\n`,
		"--key k1 --since 1h --topic x":               `no archived event matches --topic x --key k1 --since \d`,
		"--all --since 2100-01-01T00:00:00Z":          `--since is 2100-01-01T00:00:00Z: the last archived event was published at `,
		"--topic labour.completed --until 300d":       `--until is \S+: the archive begins at `,
		"--all --until 2000-01-01 --since 2001-01-01": `--since is 2001-01-01T00:00:00Z: want a time before --until, which is 2000-01-01T00:00:00Z`,
	} {
		code := cli.ExitFailed
		if strings.Contains(want, "want a time") {
			code = cli.ExitUsage
		}
		assert.Regexp(t, want, o.run(code, append([]string{"outbox", "replay"}, strings.Fields(flags)...)...))
	}
	assert.Contains(t, o.run(cli.ExitFailed, "outbox", "replay", "--resume", "77"), "there is no such replay")
	assert.Regexp(t, `^TOPIC +EVENTS +SIZE +FIRST +LAST\nlabour.completed +500 +0.0 MB .*\nother +500 `, o.run(cli.ExitOK, "outbox", "replay", "--all", "--dry-run"))
	assert.Equal(t, "No such actions.\n", o.run(cli.ExitOK, "outbox", "audit"), "a dry run does nothing")

	pending := func() (n int) {
		require.NoError(t, o.pool.QueryRow(t.Context(), `select count(*) from `+o.schema+`.outbox where topic = 'again'`).Scan(&n))
		return n
	}
	killed, output := millrace(t, "outbox", "replay", "--topic", "labour.completed", "--to", "again", "--rate", "20", "--note", "a new consumer", "--schema", o.schema, "--dsn", o.dsn)
	require.NoError(t, killed.Start())
	assert.Eventually(t, func() bool { return pending() >= 20 }, time.Minute, time.Millisecond, output)
	require.NoError(t, killed.Process.Kill())
	require.Error(t, killed.Wait())
	assert.Less(t, pending(), 500)
	assert.Regexp(t, ` replay +\d+ +a new consumer; topic labour.completed; until \S+; to again; has not finished: "outbox replay --resume 1" continues it\n`, o.run(cli.ExitOK, "outbox", "audit"))
	assert.Regexp(t, `^Replay 1 was stopped after \d+ events.\nTo continue it, run: millrace outbox replay --resume 1 `, o.run(cli.ExitOK, "outbox", "stop", "1", "--actor", "grace"))
	assert.Contains(t, o.run(cli.ExitFailed, "outbox", "stop", "1"), `no such replay, or it is done: 1: run "millrace outbox audit"`)
	assert.Contains(t, o.run(cli.ExitUsage, "outbox", "stop", "x"), `the ID is "x"`)
	assert.Regexp(t, `grace +stop replay +0 +replay 1\n`, o.run(cli.ExitOK, "outbox", "audit"))
	assert.Equal(t, "Replay 1 has finished: 500 events were put into the outbox, and relays send them.\n", o.run(cli.ExitOK, "outbox", "replay", "--resume", "1"))
	assert.Equal(t, 500, pending())
	var events int
	require.NoError(t, o.pool.QueryRow(t.Context(), `select count(distinct event_id) from `+o.schema+`.outbox`).Scan(&events))
	assert.Equal(t, 500, events, "each once")

	var p outboxadmin.ReplayProgress
	require.NoError(t, json.Unmarshal([]byte(o.run(cli.ExitOK, "outbox", "replay", "--key", "k1", "--since", "1d", "--actor", "me", "-o", "json")), &p))
	assert.Equal(t, outboxadmin.ReplayProgress{ID: 4, Events: 334, At: p.At, Finished: true}, p)
	assert.Regexp(t, `TIME .*\n\S+ +me +replay +334 +key k1; since \S+; until \S+\n`, o.run(cli.ExitOK, "outbox", "audit"))
}
