package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// Failed events are grouped by their errors, but for numbers, IDs and quoted text; a group is retried and discarded as one.
func TestGroupsOfFailedEvents(t *testing.T) {
	o := newOperator(t)
	o.run(cli.ExitOK, "migrate", "up")
	o.exec(`insert into {schema}.outbox_failed (state, event_id, topic, key, hash, shard, seq, headers, payload, created_at, attempts, reason)
		select s, e, t, 'k', 7, 7, 1, '{}', '', now(), 1, r from (values
		('dead', 'e1', 't', 'message of 2000001 bytes: too large'), ('dead', 'e2', 'u', 'message of 2000002 bytes: too large'),
		('discarded', 'e3', 't', 'message of 2000003 bytes: too large'), ('retrying', 'e4', 't', 'no field "a" in 0198c0de-0000-7000-8000-000000000001'),
		('retrying', 'e5', 't', 'no field "b" in 0198c0de-0000-7000-8000-000000000002'), ('blocked', 'e6', 't', '')) v (s, e, t, r)`)
	list := func(args ...string) (groups []outboxadmin.ErrorGroup) {
		require.NoError(t, json.Unmarshal([]byte(o.run(cli.ExitOK, append([]string{"outbox", "list", "--groups", "-o", "json"}, args...)...)), &groups))
		return groups
	}
	groups := list()
	require.Len(t, groups, 2)
	large, field := groups[0], groups[1]
	assert.Equal(t, "message of <n> bytes: too large", large.Text)
	assert.Equal(t, []int{3, 2, 0, 1}, []int{large.Events, large.Dead, large.Retrying, large.Discarded})
	assert.Equal(t, []string{"t", "u"}, large.Topics)
	assert.Equal(t, "no field <text> in <id>", field.Text)
	assert.Equal(t, 2, field.Retrying)
	assert.Regexp(t, `^GROUP +EVENTS +DEAD +RETRYING +DISCARDED +FIRST +LAST +TOPICS +REASON\n`+large.Group+` +3 +2 +- +1 +\S+ +\S+ +t,u +message of <n> bytes: too large\n`+
		field.Group+` +2 +- +2 +- `, o.run(cli.ExitOK, "outbox", "list", "--groups"))
	dead := list("--state", "dead", "--topic", "u")
	require.Len(t, dead, 1)
	assert.Equal(t, 1, dead[0].Events)
	assert.Equal(t, large.Group, dead[0].Group, "the group does not depend on what is selected")
	assert.Len(t, list("--limit", "1"), 1)

	var events []outboxadmin.Event
	require.NoError(t, json.Unmarshal([]byte(o.run(cli.ExitOK, "outbox", "list", "--group", field.Group, "-o", "json")), &events))
	require.Len(t, events, 2)
	assert.Equal(t, field.Group, events[0].Group)
	assert.Equal(t, "2 events will be discarded by a running relay.\n", o.run(cli.ExitOK, "outbox", "discard", "--group", field.Group, "--actor", "me", "--note", "test data"))
	assert.Equal(t, "1 event will be retried by a running relay.\n", o.run(cli.ExitOK, "outbox", "retry", "--group", large.Group, "--topic", "u"))
	o.run(cli.ExitOK, "outbox", "retry", "e1", "e2")
	assert.Regexp(t, `(?s)TIME .* retry +2 +events e1, e2\n.* retry +1 +topic u; group `+large.Group+`\n.* me +discard +2 +test data; group `+field.Group+`\n`, o.run(cli.ExitOK, "outbox", "audit"))
	assert.Contains(t, o.run(cli.ExitFailed, "outbox", "retry", "--group", "00000000"), "no such event")
	assert.Contains(t, o.run(cli.ExitUsage, "outbox", "retry", "--group", "x", "--all"), "--all cannot be combined")
}
