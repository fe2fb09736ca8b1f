package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/console"
)

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.fail()
	page := text(s.get(http.StatusOK, "/dead"))
	assert.Contains(t, page, "2 match")
	assert.Contains(t, page, "no user <n>")
	assert.Regexp(t, `e2 shop/book k dead 3 \S+ no user 8`, page)
	assert.NotContains(t, page, "e3", "it is blocked")
	assert.NotContains(t, page, "Replay 2", "somebody who may look cannot act")
	assert.Contains(t, text(s.get(http.StatusOK, "/dead?state=all")), "e3 shop/book k blocked")
	assert.Contains(t, text(s.get(http.StatusOK, "/dead?consumer=nobody")), "Nothing matches.")

	typed := s.get(http.StatusOK, "/dead?filter="+url.QueryEscape(`state:retrying consumer:"shop/bill"`))
	assert.Contains(t, text(typed), "Events that are retried of shop/bill.")
	assert.Contains(t, typed, "/console/orders/dead?consumer=shop%2Fbill&amp;state=retrying", "the URL has the names")
	wrong := text(s.get(http.StatusBadRequest, "/dead?filter="+url.QueryEscape("stat:dead since:yesterday e1")))
	assert.Contains(t, wrong, "stat: dead no such name: want state, consumer, topic, key, group, reason, since, until or event")
	assert.Contains(t, wrong, "since: yesterday want a time such as")
	assert.Contains(t, wrong, "nothing is shown")
}

func TestOneDeadLetter(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look|console.Payloads)
	s.fail()
	page := text(s.reveal(http.StatusOK, "/dead/event?id=e1&consumer=shop/book"))
	for _, says := range []string{"dead at shop/book", "It failed as often as claim.max_attempts allows.", "host/1 first", "token hunter2", `"email": "ada@example.com"`, `"n": 12345678901234567890`, "shop/bill retrying"} {
		assert.Contains(t, page, says)
	}
	s.get(http.StatusNotFound, "/dead/event?id=e9")
	s.get(http.StatusNotFound, "/dead/event?id=e3&consumer=shop/bill")
}

func TestPayloadsAreHiddenAndMasked(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.fail()
	page := s.get(http.StatusOK, "/dead/event?id=e1&consumer=shop/book")
	assert.Contains(t, page, "You may not see payloads.")
	assert.NotContains(t, page, "ada@example.com")

	m := open(t, everything, func(c *console.Config) { c.Mask = []string{"EMAIL", " token "} })
	m.fail()
	page = m.reveal(http.StatusOK, "/dead/event?id=e1&consumer=shop/book")
	assert.NotContains(t, page, "ada@example.com")
	assert.NotContains(t, page, "hunter2", "headers are masked, too, also by a name with spaces around it")
	assert.Contains(t, text(page), `"email": "••••••"`)
	assert.Contains(t, text(page), `"n": 12345678901234567890`)
	assert.NotContains(t, m.reveal(http.StatusOK, "/dead/event?id=e2"), "bob@example.com", "however deep, however written")
	assert.Contains(t, m.get(http.StatusOK, "/dead/event?id=e3"), "its secrets cannot be masked")
	for _, cloudEvent := range []string{`{"specversion": "1.0", "data_base64": "c2VjcmV0"}`, `{"specversion": "1.0", "data": "<email>c2VjcmV0</email>"}`} {
		m.exec(`update {schema}.claim_failed set payload = convert_to('` + cloudEvent + `', 'UTF8') where event_id = 'e3'`)
		page := m.get(http.StatusOK, "/dead/event?id=e3")
		if strings.Contains(page, "Show it") {
			page = m.reveal(http.StatusOK, "/dead/event?id=e3")
		}
		assert.NotContains(t, page, "c2VjcmV0", "the data of a CloudEvent is no JSON")
		assert.NotContains(t, page, "/dead/edit")
	}
}

func TestReplay(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.fail()
	page := text(s.get(http.StatusOK, "/do/replay?consumer=shop/book"))
	assert.Contains(t, page, "Replay 2 dead letters?")
	assert.Contains(t, page, "Dry run")
	assert.Contains(t, page, "millrace dead replay --consumer shop/book --rate 50 --max-failed 5 --schema "+s.schema)
	require.Equal(t, 2, s.count(`select count(*) from {schema}.claim_failed where state = 'dead'`), "a page changes nothing")

	done := text(s.act(http.StatusOK, "/do/replay?consumer=shop/book", "note", "deployed the fix"))
	assert.Contains(t, done, " of 2 ", "the page of the replay")
	assert.Contains(t, done, "deployed the fix")
	s.comes(2, `select count(*) from {schema}.claim_failed where replayed`)
	audit := text(s.get(http.StatusOK, "/audit"))
	assert.Contains(t, audit, "ada replay shop/book e1 deployed the fix")
	assert.Contains(t, text(s.get(http.StatusOK, "/do/replay?consumer=shop/book")), "No event matches any more.")
}

// What is confirmed is what runs: where it changed meanwhile the person is asked again.
func TestReplayOfAnotherNumberIsAskedAgain(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.fail()
	form := s.form(s.get(http.StatusOK, "/do/replay?state=dead"))
	s.exec(`update {schema}.claim_failed set state = 'dead' where consumer = 2`)
	page := s.post(http.StatusConflict, "/do/replay", form)
	assert.Contains(t, text(page), "3 events match now; you confirmed 2. Nothing was changed.")
	assert.Equal(t, 3, s.count(`select count(*) from {schema}.claim_failed where state = 'dead'`))
	assert.Contains(t, text(s.post(http.StatusOK, "/do/replay", s.form(page))), " of 3 ")
	s.comes(3, `select count(*) from {schema}.claim_failed where replayed`)
}

// A dry run named two events. One of them was discarded by somebody else and another one died: the number was the same, and an event was
// discarded that nobody had seen.
func TestAnActionOnOtherEventsIsAskedAgain(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.many(2)
	form := s.form(s.get(http.StatusOK, "/do/discard?topic=t"))
	s.exec(`delete from {schema}.claim_failed where event_id = 'f1'`)
	s.exec(`update {schema}.claim_failed set topic = 't' where event_id = 'e2'`)
	page := s.post(http.StatusConflict, "/do/discard", form)
	assert.Contains(t, text(page), "The same number of events matches, but they are not the same events as before. Nothing was changed.")
	assert.Equal(t, 2, s.count(`select count(*) from {schema}.claim_failed where topic = 't' and state = 'dead'`))
	assert.Contains(t, text(s.post(http.StatusOK, "/do/discard", s.form(page))), "2 events were discarded.")

	for _, change := range []string{`payload = '{"amount": 2}'`, `failed_at = now()`} {
		form = s.form(s.get(http.StatusOK, "/do/replay?event=e1&consumer=shop%2Fbook"))
		s.exec(`update {schema}.claim_failed set ` + change + ` where event_id = 'e1'`)
		assert.Contains(t, text(s.post(http.StatusConflict, "/do/replay", form)), "they are not the same events as before", change)
	}
	form = s.form(s.get(http.StatusOK, "/do/discard?state=retrying"))
	s.exec(`update {schema}.claim_failed set attempts = attempts + 1 where state = 'retrying'`)
	s.post(http.StatusOK, "/do/discard", form) // an attempt is no change of what was decided about

	s.exec(`insert into {schema}.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, attempts, reason)
		select 1, 3, i, 'f' || i, 'order.placed', '', '', '', now(), case i when 3 then 'retrying' else 'dead' end, 3, case i when 3 then 'timeout' else 'refused ' || i end from generate_series(1, 3) i`)
	path := "/do/outbox-discard?group=" + s.group("refused <n>")
	for _, change := range []string{`update {schema}.outbox_failed set state = 'retrying' where event_id = 'f1'`, `update {schema}.outbox_failed set reason = case event_id when 'f1' then 'timeout' else 'refused 3' end where event_id in ('f1', 'f3')`} {
		form = s.form(s.get(http.StatusOK, path))
		s.exec(change)
		assert.Contains(t, text(s.post(http.StatusConflict, "/do/outbox-discard", form)), "somebody has acted on them")
		assert.Zero(t, s.count(`select count(*) from {schema}.outbox_failed where command is not null`))
	}
	assert.Contains(t, text(s.act(http.StatusOK, path)), "2 events will be discarded by a running relay.")
}

// Nobody decides about what came after the page was shown: another call, another answer, another pause.
func TestADecisionIsAboutWhatWasShown(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.exec(`insert into {schema}.effect (created_at, key, state, token, calls, first_called_at, called_at, until, reason)
		values (now(), 'shop/sms/e1', 'doubt', gen_random_uuid(), 1, now() - interval '1 hour', now() - interval '1 hour', now() - interval '1 hour', 'timeout')`)
	s.exec(`insert into {schema}.idempotency_key (id, service, scope, key, request, fingerprint, status, headers, body)
		values (sha256('k'), 'shop', '\x01', 'key-1', 'POST /orders', '', 201, '', '')`)
	s.act(http.StatusOK, "/do/pause?topic=t")
	for _, c := range []struct{ path, change, wrong string }{
		{"/do/resolve?key=shop%2Fsms%2Fe1&happened=yes", `update {schema}.effect set calls = 2, called_at = now()`, "The effect changed meanwhile: look at it again."},
		{"/do/forget?id=8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a", `update {schema}.idempotency_key set created_at = now() + interval '1 second'`, "Another answer is stored now: look at it."},
		{"/do/resume?topic=t", `update {schema}.outbox_topic set paused_at = now()`, "Somebody has paused the topic again meanwhile."},
	} {
		form := s.form(s.get(http.StatusOK, c.path))
		s.exec(c.change)
		action, _, _ := strings.Cut(c.path, "?")
		page := s.post(http.StatusConflict, action, form)
		assert.Contains(t, text(page), c.wrong+" Nothing was changed.")
		s.post(http.StatusOK, action, s.form(page))
	}
}

// Two who have seen the same dry run begin one replay, not two with twice the pace.
func TestASecondReplayOfTheSameEventsIsAskedAgain(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.many(3000)
	ada := s.form(s.get(http.StatusOK, "/do/replay?topic=t"))
	ada.Set("typed", "2000")
	s.post(http.StatusOK, "/do/replay", ada)
	page := s.post(http.StatusConflict, "/do/replay", ada)
	assert.Contains(t, text(page), "A replay has started, or other events match now. Nothing was changed.")
	assert.Contains(t, text(page), "Replay 1 is running and may also replay some of these events.")
	assert.Equal(t, 1, s.count(`select count(*) from {schema}.claim_replay`))
	again := s.form(page)
	again.Set("typed", "2000")
	s.post(http.StatusOK, "/do/replay", again) // who has read that may
	assert.Equal(t, 2, s.count(`select count(*) from {schema}.claim_replay`))
}

// The archive does not change when it is replayed, so the number of events says nothing.
func TestASecondReplayOfTheArchiveIsAskedAgain(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.archived("order.placed", 600) // it runs for ten minutes
	ada := s.form(s.get(http.StatusOK, "/do/archive-replay"))
	ada.Set("rate", "1")
	s.post(http.StatusOK, "/do/archive-replay", ada)
	page := s.post(http.StatusConflict, "/do/archive-replay", ada)
	assert.Contains(t, text(page), "A replay has begun meanwhile. Nothing was changed.")
	assert.Contains(t, text(page), "Replay 1 of the archive is running and may also replay some of these events.")
	assert.Equal(t, 1, s.count(`select count(*) from {schema}.outbox_audit where action = 'replay'`))
	again := s.form(page)
	again.Set("rate", "1")
	s.post(http.StatusOK, "/do/archive-replay", again) // who has read that may
	assert.Equal(t, 2, s.count(`select count(*) from {schema}.outbox_audit where action = 'replay'`))
}

// A decision that no relay has carried out is seen, and is not overwritten unseen.
func TestADecisionThatWaitsForARelayIsSeen(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.exec(`insert into {schema}.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, attempts, reason)
		select 1, 3, i, 'f' || i, 'order.placed', '', convert_to('{}', 'UTF8'), '', now(), 'dead', 3, 'refused ' || i from generate_series(1, 3) i`)
	group := "?group=" + s.group("refused <n>")
	form := s.form(s.get(http.StatusOK, "/do/outbox-discard"+group))
	s.act(http.StatusOK, "/do/outbox-retry"+group)
	assert.Contains(t, text(s.post(http.StatusConflict, "/do/outbox-discard", form)), "somebody has acted on them. Nothing was changed.")
	assert.Equal(t, 3, s.count(`select count(*) from {schema}.outbox_failed where command = 'retry'`))
	assert.Contains(t, text(s.get(http.StatusOK, "/outbox"+group)), "retry: waits for a relay")
}

// group is the name of an error group of the outbox.
func (s *site) group(text string) string {
	var group string
	require.NoError(s.t, s.pool.QueryRow(s.t.Context(), `select left(md5($1), 8)`, text).Scan(&group))
	return group
}

// The count of 2,000 events was exact. With five more it is a lower bound of the same number.
func TestAnExactNumberThatBecameALowerBoundIsAskedAgain(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.many(2000)
	form := s.form(s.get(http.StatusOK, "/do/replay?topic=t"))
	s.exec(`insert into {schema}.claim_failed (consumer, record, event_id, key, state, handler, topic) select 1, gen_random_uuid(), 'g' || i, '', 'dead', 'h', 't' from generate_series(1, 5) i`)
	form.Set("typed", "2,000")
	page := s.post(http.StatusConflict, "/do/replay", form)
	assert.Contains(t, text(page), "2,000+ events match now; you confirmed 2,000. Nothing was changed.")
	assert.Zero(t, s.count(`select count(*) from {schema}.claim_replay`))
	s.exec(`insert into {schema}.claim_failed (consumer, record, event_id, key, state, handler, topic) values (1, gen_random_uuid(), 'g6', '', 'dead', 'h', 't')`)
	form = s.form(page)
	form.Set("typed", "2,000")
	s.post(http.StatusOK, "/do/replay", form) // which events match does not matter: all are taken, as the page has warned
}

func TestDiscard(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.fail()
	assert.Contains(t, text(s.act(http.StatusOK, "/do/discard?event=e1&consumer=shop/book")), "1 event was discarded.")
	assert.Equal(t, 1, s.count(`select count(*) from {schema}.claim_failed where state = 'dead'`))
	s.exec(`insert into {schema}.claim_failed (consumer, record, event_id, key, state, attempts, reason, error, history, handler, topic, headers, payload)
		select 1, gen_random_uuid(), 'f' || i, '', 'dead', 3, 'attempts', 'no', '[]', 'h', 't', convert_to('{"uuid": "", "metadata": {}}', 'UTF8'), ''::bytea from generate_series(1, 101) i`)
	page := s.get(http.StatusOK, "/do/discard?topic=t")
	assert.Contains(t, text(page), "Type 101 to go on")
	assert.Contains(t, text(s.post(http.StatusBadRequest, "/do/discard", s.form(page))), "Type the number of events to go on. Nothing was changed.")
	assert.Equal(t, 102, s.count(`select count(*) from {schema}.claim_failed where state = 'dead'`))
	assert.Contains(t, text(s.act(http.StatusOK, "/do/discard?topic=t", "typed", "101")), "101 events were discarded.")
}

// What an action cannot change is not offered to it: the broker redelivers some of what is retried, and nobody replays what is blocked.
func TestStatesThatActionsChange(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.fail()
	s.exec(`update {schema}.claim_failed set state = 'nacked' where event_id = 'e2'`)
	assert.Contains(t, text(s.get(http.StatusOK, "/do/replay?state=retrying")), "Replay 1 event?", "the one that waits, and not the one that the broker has")
	assert.Contains(t, text(s.get(http.StatusOK, "/do/replay?state=blocked")), "Events in this state cannot be changed in this way")
	assert.Contains(t, text(s.get(http.StatusOK, "/do/discard?state=blocked")), "Discard 1 event?")
	assert.Contains(t, text(s.act(http.StatusOK, "/do/replay?state=all")), " of 2 ")
	s.comes(2, `select count(*) from {schema}.claim_failed where replayed`)
}

// Relative times were by the clock of the console's machine: one that goes wrong selected other events. And an hour that a plan had
// shown moved on until somebody confirmed it. Here the database's clock is three hours ahead.
func TestTimesAreByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	s := open(t, everything, func(c *console.Config) {
		d := &c.Databases[0]
		_, err := d.Pool.Exec(t.Context(), `create function `+d.Schema+`.now() returns timestamptz language sql stable as $$ select pg_catalog.now() + interval '3 hours' $$`)
		require.NoError(t, err)
		cfg := d.Pool.Config()
		cfg.ConnConfig.RuntimeParams["search_path"] = d.Schema + ", pg_catalog"
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		d.Pool = pool
	})
	s.fail()
	for since, matching := range map[string]string{"1h": "0 match", "4h": "2 match"} {
		assert.Contains(t, text(s.get(http.StatusOK, "/dead?since="+since)), matching, since)
	}
	assert.Contains(t, text(s.get(http.StatusOK, "/do/discard?since=1h")), "No event matches any more.")
	page := s.get(http.StatusOK, "/do/discard?since=4h&until=1h")
	form := s.form(page)
	for name, ago := range map[string]time.Duration{"since": time.Hour, "until": -2 * time.Hour} {
		at, err := time.Parse(time.RFC3339Nano, form.Get(name))
		require.NoError(t, err)
		assert.WithinDuration(t, time.Now().Add(-ago), at, wait, name)
		assert.Contains(t, text(page), " --"+name+" "+form.Get(name), "the command has the same time")
	}
	s.post(http.StatusOK, "/do/discard", form)
	assert.Equal(t, 2, s.count(`select count(*) from {schema}.claim_audit where action = 'discard'`))
}
