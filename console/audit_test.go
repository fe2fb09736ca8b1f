package console_test

import (
	"html"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/console"
)

// The audit has what was done to events, to topics, to effects and to stored answers, the latest first, each of them on one page.
func TestAuditPages(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.exec(`insert into {schema}.claim_audit (at, actor, action, consumer, event_id) select '2026-01-02'::timestamptz + i * interval '4 s', 'ada', 'replay', 'shop', 'note ' || i * 4 from generate_series(1, 40) i`)
	s.exec(`insert into {schema}.outbox_audit (at, actor, action, events, detail) select '2026-01-02'::timestamptz + i * interval '4 s' + interval '1 s', 'ada', 'pause', 0,
		jsonb_build_object('topic', 'note ' || i * 4 + 1) from generate_series(1, 40) i`)
	s.exec(`insert into {schema}.effect_resolution (resolved_at, key, state, before, reason, resolved_by, note)
		select '2026-01-02'::timestamptz + i * interval '4 s' + interval '2 s', 'note ' || i * 4 + 2, 'not_done', 'doubt', 'timeout', 'grace', '' from generate_series(1, 40) i`)
	s.exec(`insert into {schema}.idempotency_key_audit (at, actor, action, service, key, request, status, answered_at, note)
		select '2026-01-02'::timestamptz + i * interval '4 s' + interval '3 s', 'linus', 'forget', 'shop', 'note ' || i * 4 + 3, 'POST /orders', 409, now(), '' from generate_series(1, 40) i`)
	var seen []int
	pages := 0
	for path := "/audit"; path != ""; pages++ {
		page := s.get(http.StatusOK, path)
		for _, n := range regexp.MustCompile(`(?:topic |>)note (\d+)<`).FindAllStringSubmatch(page, -1) {
			i, err := strconv.Atoi(n[1])
			require.NoError(t, err)
			seen = append(seen, i)
		}
		_, path, _ = strings.Cut(page, `<a class="button" href="/console/orders/audit?`)
		if path, _, _ = strings.Cut(path, `"`); path != "" {
			path = "/audit?" + path
		}
	}
	assert.Equal(t, 4, pages)
	assert.Len(t, seen, 160)
	assert.True(t, slices.IsSortedFunc(seen, func(a, b int) int { return b - a }), "%v", seen)
	first := text(s.get(http.StatusOK, "/audit"))
	assert.Contains(t, first, "Friday, January 2, 2026 00:02:43 linus forget keys of shop note 163 POST /orders, status 409")
	assert.Contains(t, first, "grace resolve: not done effects note 162 in doubt: timeout")
	assert.Contains(t, text(s.get(http.StatusOK, "/audit?before=1.1.1.1")), "No older actions.")
	for _, wrong := range []string{"1", "1.1.1.x", "1.1.1.-1", "1.1.1.1.1"} {
		s.get(http.StatusNotFound, "/audit?before="+wrong)
	}
}

func TestDeadLettersArePaged(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.many(120)
	var seen []string
	for path := "/dead?topic=t"; path != ""; {
		page := s.get(http.StatusOK, path)
		for _, id := range regexp.MustCompile(`>(f\d+)</a>`).FindAllStringSubmatch(page, -1) {
			seen = append(seen, id[1])
		}
		_, path, _ = strings.Cut(page, `<a class="button" href="/console/orders/dead?after=`)
		if path, _, _ = strings.Cut(path, `"`); path != "" {
			path = "/dead?after=" + strings.ReplaceAll(path, "&amp;", "&")
		}
	}
	require.Len(t, seen, 120)
	assert.Equal(t, "f120", seen[0])
	assert.Equal(t, "f1", seen[119])
	assert.Contains(t, text(s.get(http.StatusOK, "/dead?topic=t&after=100")), "50 more of 120")
	s.get(http.StatusNotFound, "/dead?after=x")
}

// Of many dead letters a page groups the newest, and counts all where that costs nothing. It says which.
func TestManyDeadLetters(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.many(2100)
	assert.Contains(t, text(s.get(http.StatusOK, "/dead?consumer=shop/book")), "Causes 2,102 match; of the newest 2,000")
	page := text(s.get(http.StatusOK, "/dead?topic=t"))
	assert.Contains(t, page, "Causes 2,000+ match; of the newest 2,000")
	assert.Contains(t, page, "Replay 2,000+ …")
	assert.Contains(t, text(s.get(http.StatusOK, "/dead?topic=none")), "Nothing matches.", "all were searched")
	page = text(s.get(http.StatusOK, "/do/discard?topic=t"))
	assert.Contains(t, page, "Discard 2,000+ dead letters?")
	assert.Contains(t, page, "nothing was changed; of the newest 2,000")
	assert.Contains(t, page, "Type 2,000 to go on")
	s.warns("/do/replay?topic=t", "Replay 2,000+ dead letters?")
	assert.Contains(t, text(s.act(http.StatusBadRequest, "/do/replay?topic=t")), "Type the number of events to go on. Nothing was changed.")
	assert.NotContains(t, s.get(http.StatusOK, "/do/replay?consumer=shop/book"), `class="danger"`, "these are counted")
	s.exec(`insert into {schema}.claim_failed (consumer, record, event_id, state, handler, topic) select 1, gen_random_uuid(), 'g' || i, 'dead', 'h', 't' from generate_series(1, 8000) i`)
	s.exec(`update {schema}.claim_failed set topic = 'other' where id = (select min(id) from {schema}.claim_failed where state = 'dead')`)
	other := s.get(http.StatusOK, "/dead?topic=other")
	assert.Contains(t, text(other), "Causes 0+ match; the newest 10,000 were searched")
	assert.Contains(t, text(other), `None of the newest matches. "Search older" below goes on`)
	_, older, found := strings.Cut(other, `href="/console/orders/dead?after=`)
	require.True(t, found)
	older, _, _ = strings.Cut(older, `"`)
	page = text(s.get(http.StatusOK, "/dead?after="+html.UnescapeString(older)))
	assert.Contains(t, page, "e1 shop/book", "it is among the older ones")
	assert.NotContains(t, page, "Search older", "all were searched")
	assert.Contains(t, text(s.get(http.StatusOK, "/do/discard?topic=t")), "nothing was changed; of the newest 2,000")
	assert.Contains(t, text(s.get(http.StatusOK, "/do/replay?topic=other")), "the older ones are not searched here")
}

// warns asks for the plan of an action on events that were not counted to the end.
func (s *site) warns(path, question string) {
	s.t.Helper()
	page := s.get(http.StatusOK, path)
	assert.Contains(s.t, text(page), question)
	assert.Contains(s.t, text(page), "Only the newest events were counted")
	assert.Contains(s.t, text(page), "Type 2,000 to go on")
	assert.Contains(s.t, page, `<button class="danger">`)
}

// Failed events of the outbox likewise, and an outbox that is too large to be searched for an event.
func TestManyFailedEvents(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.exec(`insert into {schema}.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, attempts, reason)
		select 1, 3, i, 'f' || i, 'order.placed', '', convert_to('{}', 'UTF8'), '', now(), 'dead', 3, 'message too large: ' || i from generate_series(1, 2100) i`)
	page := s.get(http.StatusOK, "/outbox")
	assert.Contains(t, text(page), "Dead 2,000+")
	assert.Contains(t, text(page), "dead or retrying; the newest of them")
	assert.Contains(t, text(page), "message too large: <n> 2,000 2,000")
	_, group, found := strings.Cut(page, "/outbox?group=")
	require.True(t, found)
	group, _, _ = strings.Cut(group, "#")
	assert.Contains(t, text(s.get(http.StatusOK, "/outbox?group="+group)), "f2100 order.placed dead")
	s.warns("/do/outbox-retry?group="+group, "Retry 2,000+ events of the outbox?")
	assert.Contains(t, text(s.get(http.StatusOK, "/outbox?group=nothing")), "None of the newest 2,000 of each state. Older ones: millrace outbox list --group nothing")
	assert.Contains(t, text(s.get(http.StatusOK, "/do/outbox-retry?group=nothing")), "the older ones are not searched here")

	s.exec(`alter table {schema}.outbox rename to away; create view {schema}.outbox as select a.* from {schema}.away a, pg_sleep(30)`)
	assert.Contains(t, text(s.get(http.StatusOK, "/event?id=e9")), "It was not found, and the outbox is too large to be searched here.")
	assert.Contains(t, text(s.get(http.StatusOK, "/event?id=f7")), "A person decides: it is dead in 1 place.")
}
