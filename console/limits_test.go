package console_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/console"
)

// Somebody who acts too often is asked to wait, and is told how long. Nothing is changed meanwhile.
func TestActionsAreLimited(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.page.Limit(2, time.Hour)
	form := s.form(s.get(http.StatusOK, "/do/pause?topic=t"))
	s.post(http.StatusOK, "/do/pause", form)
	s.post(http.StatusConflict, "/do/pause", form) // it is paused already, which was an attempt
	got, page := s.send("/do/pause", form)
	assert.Equal(t, http.StatusTooManyRequests, got.Status)
	seconds, err := strconv.Atoi(got.Header.Get("Retry-After"))
	require.NoError(t, err)
	assert.InDelta(t, 3600, seconds, 300)
	assert.Contains(t, text(page), "You act too often. Wait ")
	assert.Contains(t, text(page), "Nothing was changed.")
	assert.Equal(t, 1, s.count(`select count(*) from {schema}.outbox_audit`))
	s.get(http.StatusOK, "/do/pause?topic=t")
}

// A discard of more events than end within ActTimeout was cut off in the middle.
func TestADiscardOfTooManyIsRefused(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.exec(`insert into {schema}.consumer (name) values ('shop/book')`)
	s.exec(`insert into {schema}.claim_failed_count values (1, 'dead', 'abcdef01', 50001, now())`)
	s.exec(`insert into {schema}.claim_failed (consumer, record, event_id, key, state, attempts, reason, error, handler, topic, headers, payload, first_at, failed_at)
		select 1, md5(n::text)::uuid, 'e' || n, '', 'dead', 3, 'attempts', 'no user', 'h', 't', convert_to('{"uuid": "", "metadata": {}}', 'UTF8'), '', now(), now() from generate_series(1, 2001) n`)
	for _, path := range []string{"/do/discard?consumer=shop%2Fbook", "/do/discard?topic=t"} {
		page := text(s.get(http.StatusOK, path))
		assert.Contains(t, page, "more than 50,000 events: too many for one request. Narrow the filter, or run the command: millrace dead discard", path)
		assert.NotContains(t, page, "for the audit", path)
	}
	assert.Contains(t, text(s.get(http.StatusOK, "/do/discard?consumer=shop%2Fbook&event=e7")), "for the audit", "a narrower one goes on")
	assert.Contains(t, text(s.get(http.StatusOK, "/do/replay?consumer=shop%2Fbook")), "for the audit", "a replay lasts")

	// Where consumers cannot be read, there may be any number.
	s.exec(`delete from {schema}.claim_failed_count where events = 50001`)
	within := func(says string) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Contains(text(s.get(http.StatusOK, "/do/discard?topic=t")), says) }, wait, pause)
	}
	within("for the audit")
	s.exec(`alter table {schema}.claim_key rename column full_since to away`)
	within("more than 50,000 events")
}

// An action of the outbox that does not end in time names the command, which has no such limit. Here somebody's transaction locks an event.
func TestAnActionThatDoesNotEndNamesTheCommand(t *testing.T) {
	t.Parallel()
	for action, command := range map[string]string{"outbox-retry": "millrace outbox retry ", "outbox-discard": "millrace outbox discard "} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			s := open(t, everything, func(c *console.Config) { c.ActTimeout = time.Second })
			s.exec(`insert into {schema}.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, attempts, reason)
				values (1, 3, 1, 'f1', 'order.placed', '', convert_to('{}', 'UTF8'), '', now(), 'dead', 3, 'too large')`)
			path := "/do/" + action + "?group=" + s.group("too large")
			form := s.form(s.get(http.StatusOK, path))
			locking, err := s.pool.Begin(t.Context())
			require.NoError(t, err)
			_, err = locking.Exec(t.Context(), `select from `+s.schema+`.outbox_failed for update`)
			require.NoError(t, err)
			page := text(s.post(http.StatusInternalServerError, "/do/"+action, form))
			require.NoError(t, locking.Rollback(t.Context()))
			assert.Contains(t, page, "It failed: it did not finish within 1s. The audit lists what was changed; nothing else was. The command has no time limit: "+command)
			assert.Zero(t, s.count(`select count(*) from {schema}.outbox_failed where command is not null`))
		})
	}
}
