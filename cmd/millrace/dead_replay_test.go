package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

func TestDeadReplayAtAPace(t *testing.T) {
	t.Parallel()
	o := newDead(t)
	assert.Equal(t, "No replays.\n", o.run(cli.ExitOK, "dead", "replays"))
	assert.Contains(t, o.run(cli.ExitOK, "dead", "replay", "--all", "--rate", "1000"),
		"Replay 1 has finished: 2 events are retried; 0 handled, 2 not tried yet.\nWhat became of them: millrace dead replays 1 ")
	assert.Regexp(t, `^ID +STATE +REPLAYED +HANDLED +UNTRIED +RETRYING +DEAD +STARTED +ACTOR +WHY\n1 +done +2/2 +0 +2 +0 +0 +\S+ +\S+@\S* +-\n$`, o.run(cli.ExitOK, "dead", "replays"))

	// A list counts 2,000 events of a replay, and says so.
	o.exec(`insert into {schema}.claim_replay_event select n, 1 from generate_series(1000, 4000) n`)
	o.exec(`update {schema}.claim_replay set replayed = 3003, selected = 3003`)
	assert.Regexp(t, `\n1 +done +3003/3003 +<= 3001 +>= 2 +>= 0 +>= 0 `, o.run(cli.ExitOK, "dead", "replays"))
	assert.Regexp(t, `\n1 +done +3003/3003 +3001 +2 +0 +0 `, o.run(cli.ExitOK, "dead", "replays", "1"))

	assert.Contains(t, o.run(cli.ExitFailed, "dead", "replay", "--all", "--rate", "1000"), `no such event: run "millrace dead list"`)
}

// A replay is stopped and continued by its ID.
func TestDeadReplayIsResumed(t *testing.T) {
	t.Parallel()
	o := newDead(t)
	o.exec(`update {schema}.claim_failed set state = 'dead'`)
	id, err := deadletter.BeginReplay(t.Context(), o.pool, o.schema, deadletter.Selection{}, deadletter.Pace{Rate: 5}, deadletter.By{Actor: "ada"})
	require.NoError(t, err)
	require.EqualValues(t, 1, id)
	assert.Regexp(t, `\n1 +running, last step \S+ +0/4 `, o.run(cli.ExitOK, "dead", "replays"))
	assert.Contains(t, o.run(cli.ExitOK, "dead", "stop", "1", "--actor", "grace"), "Replay 1 was stopped after 0 of 4 events.\nTo continue it, run: millrace dead replay --resume 1 ")
	assert.Regexp(t, `\n1 +stopped +0/4 +0 +0 +0 +0 +\S+ +ada +stopped by grace\n`, o.run(cli.ExitOK, "dead", "replays", "1"))
	assert.Contains(t, o.run(cli.ExitFailed, "dead", "stop", "1"), `no such replay, or it is done: 1: run "millrace dead replays"`)

	assert.Contains(t, o.run(cli.ExitOK, "dead", "replay", "--resume", "1", "--max-failed", "50"), "Replay 1 has finished: 4 events are retried")
	var found []deadletter.ReplayStatus
	require.NoError(t, json.Unmarshal([]byte(o.run(cli.ExitOK, "dead", "replays", "--json")), &found))
	require.Len(t, found, 1)
	assert.Equal(t, deadletter.Pace{Rate: 5, MaxFailed: 0.5}, found[0].Pace)
	assert.Equal(t, deadletter.ReplayDone, found[0].State)

	for want, args := range map[string][]string{
		"--resume cannot be combined with --consumer":  {"--resume", "1", "--consumer", "x"},
		"--resume cannot be combined with event IDs":   {"--resume", "1", "e1"},
		"--resume is -1: want an ID":                   {"--resume", "-1"},
		"--rate is 0: want 1 or more":                  {"--all", "--rate", "0"},
		"--max-failed is 101: want a percentage":       {"--all", "--max-failed", "101"},
		"want event IDs, --consumer, --group, --key, ": {"--rate", "5"},
	} {
		assert.Contains(t, o.run(cli.ExitUsage, append([]string{"dead", "replay"}, args...)...), want)
	}
	assert.Contains(t, o.run(cli.ExitUsage, "dead", "stop", "x"), `the ID is "x"`)
	assert.Contains(t, o.run(cli.ExitFailed, "dead", "replay", "--resume", "9"), `no such replay, or it is done: 9`)
}
