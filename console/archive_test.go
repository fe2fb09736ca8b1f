package console_test

import (
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/console"
)

// archived puts n events of a topic into the archive, one a second until a minute ago.
func (s *site) archived(topic string, n int) {
	s.exec(`create table if not exists {schema}.outbox_archive_all partition of {schema}.outbox_archive default`)
	s.exec(`insert into {schema}.outbox_archive (published_at, shard, seq, event_id, topic, key, headers, payload, created_at)
		select now() - interval '1 min' - ($2::int - n) * interval '1 s', 3, n, $1 || '-' || n, $1, 'k' || n % 2, convert_to('{}', 'UTF8'), convert_to('hunter2', 'UTF8'), now() from generate_series(1, $2::int) n`, topic, n)
}

func TestArchive(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	assert.Contains(t, text(s.get(http.StatusOK, "/outbox/archive")), "The archive is empty")
	assert.Contains(t, s.get(http.StatusOK, "/outbox"), `href="/console/orders/outbox/archive"`)
	s.archived("parcel.packed", 120)
	s.archived("order.placed", 7)
	s.tells("/outbox/archive", "127 match")
	page := s.get(http.StatusOK, "/outbox/archive")
	assert.Regexp(t, `order.placed 7 .* parcel.packed 120`, text(page))
	assert.Contains(t, text(page), "Replay 127 …")
	assert.NotContains(t, page, "hunter2", "payloads are not listed")

	seen := map[string]bool{}
	older := regexp.MustCompile(`href="/console/orders(/outbox/archive\?[^"]*behind=[^"]*)"`)
	id := regexp.MustCompile(`event\?id=(parcel.packed-\d+)"`)
	for path, pages := "/outbox/archive?topic=parcel.packed&since=1d", 0; path != ""; pages++ {
		require.Less(t, pages, 5)
		page := s.get(http.StatusOK, path)
		for _, found := range id.FindAllStringSubmatch(page, -1) {
			assert.False(t, seen[found[1]], found[1])
			seen[found[1]] = true
		}
		next := older.FindStringSubmatch(page)
		if path = ""; next != nil {
			path = text(next[1])
		}
	}
	assert.Len(t, seen, 120)
	assert.Contains(t, text(s.get(http.StatusOK, "/outbox/archive?key=k1&topic=order.placed")), "4 match")
	assert.Contains(t, text(s.get(http.StatusOK, "/outbox/archive?until="+url.QueryEscape(time.Now().Add(-time.Hour).Format(time.RFC3339)))), "Nothing matches.")
	assert.Contains(t, text(s.get(http.StatusBadRequest, "/outbox/archive?since=yesterday")), `since is "yesterday": want a time such as`)
	assert.Contains(t, text(s.get(http.StatusBadRequest, "/outbox/archive?since=1d&until=2d")), "want a time before until")
	assert.Contains(t, text(s.get(http.StatusBadRequest, "/do/archive-replay?since=yesterday")), `since is "yesterday": want a time such as`)
	for _, behind := range []string{"1", "1.2.3", "1.2.3.99999", "-1.2.3.4", "9999999999999999999.1.1.1", "9223372036854775807.1.1.1"} {
		s.get(http.StatusNotFound, "/outbox/archive?behind="+behind)
	}
	s.get(http.StatusOK, "/outbox/archive?behind=1.1.1.1")
}

// A count that did not end says so, on the page and where a person confirms it.
func TestALargeArchive(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.archived("parcel.packed", 20_001)
	assert.Contains(t, text(s.get(http.StatusOK, "/outbox/archive")), "more than 20,000 match; counted among the newest")
	assert.Contains(t, text(s.get(http.StatusOK, "/do/archive-replay")), "Replay more than 20,000 archived events?")
	assert.Contains(t, text(s.act(http.StatusBadRequest, "/do/archive-replay", "rate", "1")), "Type the number of events to go on. Nothing was changed.")
	assert.Contains(t, text(s.get(http.StatusOK, "/do/archive-replay?topic=rare")), "None of the newest events in this time matches")
	page := text(s.act(http.StatusOK, "/do/archive-replay", "rate", "1", "typed", "20,000"))
	assert.Regexp(t, `\d+ of more than 20,000 replaying at most 1 per second`, page)
}

// A replay does what its dry run said, and what was published since is not in it. Each session sees it, stops it, and has it go on.
func TestTheArchiveIsReplayed(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.archived("parcel.packed", 100)
	s.archived("order.placed", 5)
	plan := s.get(http.StatusOK, "/do/archive-replay?topic=parcel.packed&since=1d")
	assert.Contains(t, text(plan), "Replay 100 archived events?")
	assert.Regexp(t, `millrace outbox replay --topic parcel.packed --since \S+ --until \S+ --rate 50 --schema `+s.schema, text(plan))
	assert.Zero(t, s.count(`select count(*) from {schema}.outbox_audit`), "a dry run does nothing")
	assert.Contains(t, text(s.act(http.StatusBadRequest, "/do/archive-replay?topic=parcel.packed", "rate", "fast")), `The number of events per second is "fast"`)
	assert.Contains(t, text(s.act(http.StatusConflict, "/do/archive-replay?topic=parcel.packed", "expected", "99", "rate", "1")), "100 events match now; you confirmed 99. Nothing was changed.")

	form := s.form(plan)
	s.exec(`update {schema}.outbox_archive set published_at = now() where event_id = 'parcel.packed-100'`)
	form.Set("rate", "1")
	assert.Contains(t, text(s.post(http.StatusConflict, "/do/archive-replay", form)), "99 events match now; you confirmed 100.", "of what the person has read")
	form.Set("expected", "99")
	form.Set("to", "again")
	form.Set("note", "a new consumer")
	page := text(s.post(http.StatusOK, "/do/archive-replay", form))
	assert.Regexp(t, `\d+ of 99 replaying at most 1 per second`, page)
	assert.Contains(t, page, "a new consumer")
	assert.Regexp(t, `topic parcel.packed since \S+ until \S+ to again`, page)
	assert.NotContains(t, page, "This console does not continue it.")
	s.comes(1, `select count(*) from {schema}.outbox_audit where action = 'replay' and events > 0`)
	for _, path := range []string{"/", "/outbox/archive"} {
		s.tells(path, "Replay 1 of the archive by ada")
	}

	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	other := *s
	other.client = &http.Client{Jar: jar}
	t.Cleanup(other.client.CloseIdleConnections)
	assert.Contains(t, text(other.get(http.StatusOK, "/do/archive-stop?id=1")), "millrace outbox stop --schema "+s.schema+" 1")
	assert.Contains(t, text(other.act(http.StatusOK, "/do/archive-stop?id=1", "note", "too early")), "of 99 stopped by ada")
	assert.Contains(t, text(s.get(http.StatusOK, "/do/archive-stop?id=1")), "It does not run: stopped.")
	audit := s.get(http.StatusOK, "/audit")
	assert.Contains(t, text(audit), "ada stop replay outbox replay 1 too early")
	assert.Contains(t, audit, "/console/orders/outbox/archive/replay?id=1")
	assert.Less(t, s.count(`select events from {schema}.outbox_audit where action = 'replay'`), 99)

	again := text(s.get(http.StatusOK, "/do/archive-continue?id=1"))
	assert.Contains(t, again, "millrace outbox replay --resume 1 --rate 1")
	assert.NotContains(t, again, "failed again")
	s.act(http.StatusOK, "/do/archive-continue?id=1", "rate", "")
	s.tells("/outbox/archive/replay?id=1", "99 of 99 done")
	s.comes(99, `select count(distinct event_id) from {schema}.outbox where topic = 'again'`)
	assert.Equal(t, 99, s.count(`select count(*) from {schema}.outbox`))
	assert.Contains(t, text(s.get(http.StatusOK, "/do/archive-continue?id=1")), "It is done.")
	for _, path := range []string{"/outbox/archive/replay?id=77", "/outbox/archive/replay?id=x", "/outbox/archive/replay", "/do/archive-stop?id=77", "/do/archive-continue?id=", "/outbox/archive/replay?id=2"} {
		s.get(http.StatusNotFound, path)
	}
}

// A replay that nobody continues any more is continued by a console when somebody asks for it; one that waits for relays says so.
func TestAReplayOfTheArchiveThatWasLeft(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.archived("parcel.packed", 10)
	s.exec(`insert into {schema}.outbox_audit (actor, action, events) values ('grace', 'replay', 0)`)
	s.exec(`insert into {schema}.outbox_replay (id, until, published_at, rate, stepped_at, selected, more) values (1, now(), '-infinity', 0, now() - interval '3 hours', 10, false)`)
	s.exec(`insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload) select 3, {schema}.outbox_next(3::smallint), 'w' || n, 't', '', '', '' from generate_series(1, 5001) n`)
	page := text(s.get(http.StatusOK, "/outbox/archive/replay?id=1"))
	assert.Contains(t, page, "This console does not continue it. It last read the archive 3h ago.")
	assert.Contains(t, page, "It may wait for relays. The outbox holds 2,000+ events.")
	s.act(http.StatusOK, "/do/archive-continue?id=1")
	assert.NotContains(t, text(s.get(http.StatusOK, "/outbox/archive/replay?id=1")), "This console does not continue it.")
	s.exec(`delete from {schema}.outbox`)
	s.tells("/outbox/archive/replay?id=1", "10 of 10 done")
}

// Who may look sees the archive and its replays, and changes nothing.
func TestTheArchiveNeedsTheRightToAct(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.archived("parcel.packed", 3)
	s.exec(`insert into {schema}.outbox_audit (actor, action, events) values ('grace', 'replay', 0)`)
	s.exec(`insert into {schema}.outbox_replay (id, until, published_at, rate, selected, more) values (1, now(), '-infinity', 0, 10, false)`)
	for _, path := range []string{"/outbox/archive", "/outbox/archive/replay?id=1"} {
		assert.NotContains(t, s.get(http.StatusOK, path), "/do/", path)
	}
	for _, action := range []string{"archive-replay", "archive-stop", "archive-continue"} {
		page := s.get(http.StatusOK, "/do/"+action+"?id=1")
		assert.Contains(t, text(page), "You may only look. Ask for the right to act.")
		csrf := regexp.MustCompile(`name="csrf" value="([^"]*)"`).FindStringSubmatch(page)
		require.NotNil(t, csrf)
		s.post(http.StatusForbidden, "/do/"+action, url.Values{"csrf": {csrf[1]}, "id": {"1"}, "expected": {"3"}})
	}
	assert.Equal(t, 1, s.count(`select count(*) from {schema}.outbox_audit`))
}
