package outboxadmin_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
)

// insertFailed inserts failed and delayed events: two keys that wait behind a dead and a retrying event, a discarded one, two delayed ones.
func (f *fixture) insertFailed() {
	f.exec(`insert into {schema}.outbox_failed (state, event_id, topic, key, hash, shard, seq, headers, payload, created_at, attempts, reason, failed_at, retry_at)
		select state, id, topic, key, 7, 7, 1, '{}', convert_to(id, 'UTF8'), now() - interval '1 hour', 3, 'refused', now() - interval '2 days',
			case state when 'retrying' then now() + interval '1 hour' end
		from (values ('dead', 'e1', 'a', 'k1'), ('blocked', 'e2', 'b', 'k1'), ('retrying', 'e3', 'a', 'k2'), ('discarded', 'e4', 'a', 'k3')) v (state, id, topic, key)`)
	f.exec(`insert into {schema}.outbox_delayed (due_at, hash, event_id, topic, key, headers, payload)
		select now() + i * interval '1 hour', 7, 'd' || i, 'a', 'k4', '{}', '' from generate_series(1, 2) i`)
}

func TestListAndCommands(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.insertFailed()
	list := func(l outboxadmin.Listing) string {
		found, err := outboxadmin.List(t.Context(), f.pool, f.schema, l)
		require.NoError(t, err)
		var ids strings.Builder
		for _, e := range found {
			ids.WriteString(e.EventID + e.Command + " ")
		}
		return ids.String()
	}
	assert.Equal(t, "e1 e2 e3 e4 d1 d2 ", list(outboxadmin.Listing{}))
	assert.Equal(t, "e1 e2 ", list(outboxadmin.Listing{Limit: 2}))
	assert.Equal(t, "e3 e4 d1 d2 ", list(outboxadmin.Listing{States: []string{"retrying", "discarded", "delayed"}}))
	assert.Equal(t, "e1 ", list(outboxadmin.Listing{Topic: "a", Key: "k1"}))
	_, err := outboxadmin.List(t.Context(), f.pool, f.schema, outboxadmin.Listing{States: []string{"lost"}})
	require.ErrorContains(t, err, `state is "lost": want one of`)
	found, err := outboxadmin.List(t.Context(), f.pool, f.schema, outboxadmin.Listing{Key: "k1", Payload: true})
	require.NoError(t, err)
	assert.Equal(t, "e1", string(found[0].Payload))
	assert.Equal(t, "refused", found[0].Reason)

	conn, err := f.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `listen "`+f.schema+`_outbox"`)
	require.NoError(t, err)
	for _, c := range []struct {
		do        func(context.Context, pgtx.DB, string, outboxadmin.Selection, outboxadmin.By) (int64, error)
		selection outboxadmin.Selection
		n         int64
		want      string
	}{
		{outboxadmin.Retry, outboxadmin.Selection{EventIDs: []string{"e1", "e2", "nobody"}}, 1, "e1retry e2 e3 e4 "},
		{outboxadmin.Retry, outboxadmin.Selection{}, 3, "e1retry e2 e3retry e4retry "},
		{outboxadmin.Discard, outboxadmin.Selection{Key: "k1"}, 2, "e1discard e2discard e3 e4 "},
		{outboxadmin.Discard, outboxadmin.Selection{Topic: "a"}, 2, "e1discard e2 e3discard e4 "},
		{outboxadmin.Discard, outboxadmin.Selection{Topic: "nothing"}, 0, "e1 e2 e3 e4 "},
	} {
		n, err := c.do(t.Context(), f.pool, f.schema, c.selection, me)
		require.NoError(t, err)
		assert.Equal(t, c.n, n)
		assert.Equal(t, c.want, list(outboxadmin.Listing{States: []string{"dead", "blocked", "retrying", "discarded"}}))
		f.exec(`update {schema}.outbox_failed set command = null`)
		if c.n > 0 {
			told, err := conn.Conn().WaitForNotification(t.Context())
			require.NoError(t, err)
			assert.Empty(t, told.Payload, "every shard is meant")
		}
	}

	_, err = outboxadmin.Retry(t.Context(), f.pool, f.schema, outboxadmin.Selection{}, outboxadmin.By{})
	require.ErrorContains(t, err, "By.Actor")
	audit, err := outboxadmin.ListAudit(t.Context(), f.pool, f.schema, outboxadmin.AuditPage{})
	require.NoError(t, err)
	var did []string
	for _, a := range audit {
		did = append(did, fmt.Sprint(a.Actor, " ", a.Action, " ", a.Events, " ", string(a.Detail)))
	}
	assert.Equal(t, []string{
		`a test discard 2 {"note": "because", "topic": "a"}`,
		`a test discard 2 {"key": "k1", "note": "because"}`,
		`a test retry 3 {"note": "because"}`,
		`a test retry 1 {"note": "because", "event_ids": ["e1", "e2", "nobody"]}`,
	}, did, "what did nothing is not recorded")

	n, err := outboxadmin.Purge(t.Context(), f.pool, f.schema, 72*time.Hour)
	require.NoError(t, err)
	assert.Zero(t, n)
	_, err = outboxadmin.Retry(t.Context(), f.pool, f.schema, outboxadmin.Selection{EventIDs: []string{"e4"}}, me)
	require.NoError(t, err)
	n, err = outboxadmin.Purge(t.Context(), f.pool, f.schema, 24*time.Hour)
	require.NoError(t, err)
	assert.Zero(t, n, "it is to be retried")
	f.exec(`update {schema}.outbox_failed set command = null`)
	n, err = outboxadmin.Purge(t.Context(), f.pool, f.schema, 24*time.Hour)
	require.NoError(t, err)
	assert.EqualValues(t, 1, n)
	assert.Equal(t, "e1 e2 e3 d1 d2 ", list(outboxadmin.Listing{}))
}
