package console_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/console"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

func (s *site) pending(topic, id string) {
	s.exec(`insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload) values (3, {schema}.outbox_next(3::smallint), $1, $2, 'k', convert_to('{}', 'UTF8'), '')`, id, topic)
}

func TestOutbox(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.pending("order.placed", "p1")
	s.exec(`insert into {schema}.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, attempts, reason)
		select 1, 3, i, 'f' || i, 'order.placed', '', convert_to('{}', 'UTF8'), '', now(), 'dead', 3, 'message too large: ' || i from generate_series(1, 2) i`)
	page := text(s.get(http.StatusOK, "/outbox"))
	assert.Regexp(t, `Pending 1 oldest`, page)
	assert.Contains(t, page, "order.placed flows – – 1")
	assert.Contains(t, page, "1 of the shards with events is held by no relay")
	assert.Contains(t, page, "No relay runs")
	assert.Contains(t, page, "message too large: <n> 2 2")
	assert.Contains(t, page, "Outbox 1", "the sidebar counts what waits")

	assert.Contains(t, text(s.get(http.StatusOK, "/do/pause?topic=order.placed")), "1 waits now.")
	assert.Contains(t, text(s.act(http.StatusOK, "/do/pause?topic=order.placed", "note", "repair")), "Topic order.placed is paused.")
	assert.Contains(t, text(s.get(http.StatusOK, "/outbox")), "by ada, repair")
	assert.Contains(t, text(s.get(http.StatusOK, "/do/pause?topic=order.placed")), "It is paused already.")
	assert.Contains(t, text(s.act(http.StatusOK, "/do/resume?topic=order.placed")), "Topic order.placed is resumed.")
	assert.Contains(t, text(s.get(http.StatusOK, "/audit")), "ada pause outbox")

	_, group, found := strings.Cut(s.get(http.StatusOK, "/outbox"), "/outbox?group=")
	require.True(t, found)
	group, _, _ = strings.Cut(group, "#")
	assert.Contains(t, text(s.get(http.StatusOK, "/outbox?group="+group)), "f1 order.placed dead 3 message too large: 1")
	assert.Contains(t, text(s.get(http.StatusOK, "/do/outbox-retry?group="+group)), "Retry 2 events of the outbox?")
	assert.Contains(t, text(s.act(http.StatusOK, "/do/outbox-retry?group="+group)), "2 events will be retried by a running relay.")
	assert.Equal(t, 2, s.count(`select count(*) from {schema}.outbox_failed where command = 'retry'`))
	assert.Contains(t, text(s.act(http.StatusOK, "/do/outbox-discard?group="+group)), "2 events will be discarded by a running relay.")
	assert.Contains(t, text(s.get(http.StatusOK, "/do/outbox-retry?group=nothing")), "No event of this cause is left.")
	s.get(http.StatusNotFound, "/do/outbox-retry")
}

// A dry run of a retry said only how many events it takes. Some of them had been discarded by a person.
func TestARetryOfDiscardedEventsSaysSo(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.exec(`insert into {schema}.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, attempts, reason)
		select 1, 3, i, 'f' || i, 'order.placed', '', '', '', now(), (array['dead', 'retrying', 'discarded', 'discarded'])[i], 3, 'refused' from generate_series(1, 4) i`)
	group := s.group("refused")
	page := text(s.get(http.StatusOK, "/do/outbox-retry?group="+group))
	assert.Contains(t, page, "Retry 4 events of the outbox?")
	assert.Contains(t, page, "1 dead: refused 1 retrying: refused 2 discarded: refused")
	assert.Contains(t, page, "Somebody has discarded 2 of them. A retry publishes discarded events, too")
	page = text(s.get(http.StatusOK, "/do/outbox-discard?group="+group))
	assert.Contains(t, page, "1 dead: refused 1 retrying: refused")
	assert.NotContains(t, page, "Somebody has discarded")
}

// sent writes what a relay of that number has counted, so many minutes ago.
func (s *site) sent(topic string, relay, minutes, published int) {
	s.exec(`insert into {schema}.outbox_journal values (date_trunc('minute', now()) - $3 * interval '1 minute', $1, ('00000000-0000-7000-8000-00000000000' || $2::int)::uuid, $4, 0)`, topic, relay, minutes, published)
}

// What relays count is shown by topic and by relay, also of a topic of which nothing waits. What nobody counts is unknown, and not 0.
func TestRates(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.exec(`insert into {schema}.outbox_relay (relay_id, expires_at, name) values ('00000000-0000-7000-8000-000000000001', now() + interval '1 hour', 'relay-a'), ('00000000-0000-7000-8000-000000000002', now() + interval '1 hour', 'relay-b')`)
	s.pending("order.placed", "p1")
	page := s.get(http.StatusOK, "/outbox")
	assert.Contains(t, row(page, "topics-table", "order.placed"), "order.placed flows – – 1")
	assert.Contains(t, text(page), "Rates are not known: no relay has counted within the last hour.")
	assert.Contains(t, text(page), "relay-a –, lease")

	s = open(t, console.Look)
	s.exec(`insert into {schema}.outbox_relay (relay_id, expires_at, name) values ('00000000-0000-7000-8000-000000000001', now() + interval '1 hour', 'relay-a'), ('00000000-0000-7000-8000-000000000002', now() + interval '1 hour', 'relay-b')`)
	s.pending("order.placed", "p1")
	for m := range 5 {
		s.sent("parcel.packed", 1, m, 6000)
		s.sent("parcel.packed", 2, m, 2000)
		s.sent("", 2, m, 2)
	}
	s.sent("invoice.created", 1, 20, 900)
	page = s.get(http.StatusOK, "/outbox")
	assert.Contains(t, row(page, "topics-table", "order.placed"), "order.placed flows – – 1")
	assert.Regexp(t, `^parcel.packed flows 1[3-6]\d/s 0 –`, row(page, "topics-table", "parcel.packed"))
	assert.Regexp(t, `^invoice.created flows 0 0 –`, row(page, "topics-table", "invoice.created"))
	assert.Regexp(t, `relay-a 1\d\d/s, lease .* relay-b (3[3-9]|4[0-2])/s, lease`, text(page))
	assert.Regexp(t, `A relay counts the topics after its first 100 together: 2\.\d/min\.`, text(page))
	assert.Equal(t, 2, strings.Count(page, `class="spark"`))
	overview := s.get(http.StatusOK, "/")
	assert.Regexp(t, `order.placed 1 oldest \S+ s – parcel.packed 0 nothing waits 1[3-6]\d/s invoice.created 0 nothing waits 0 Relays`, text(overview))
	for node, width := range map[string]string{"order.placed": "0", "parcel.packed": "9", "invoice.created": "0", "relay-a": "7", "relay-b": "4"} {
		assert.Regexp(t, `<li class="node[^>"]* w-`+width+`"><a [^>]*><b>`+node, overview)
	}
}

// What was counted among the first rows of a shard, and the oldest failed ones, was shown as if it were all.
func TestTopicsBehindTheLimit(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.exec(`insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload)
		select 3, n, 'p' || n, case when n <= 2100 then 'order.placed' else 'parcel.packed' end, '', convert_to('{}', 'UTF8'), '' from generate_series(1, 2101) n`)
	s.exec(`insert into {schema}.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, attempts, reason)
		select 1, 3, n, 'f' || n, 'order.placed', '', convert_to('{}', 'UTF8'), '', now(), 'dead', 3, 'x' from generate_series(1, 2100) n`)
	s.exec(`insert into {schema}.effect (created_at, key, state, token, calls, first_called_at, called_at, until, reason)
		select now(), 'shop/sms/e' || i, 'doubt', gen_random_uuid(), 1, now() - interval '1 hour', now() - interval '1 hour', now() - interval '1 hour', 'timeout' from generate_series(1, 1100) i`)
	s.sent("parcel.packed", 1, 0, 10)
	page := s.get(http.StatusOK, "/outbox")
	assert.Regexp(t, `^order.placed flows – – 2,000\+ .* 2,000\+`, row(page, "topics-table", "order.placed"))
	assert.Regexp(t, `^parcel.packed flows \S+ – – –`, row(page, "topics-table", "parcel.packed"))
	page = text(s.get(http.StatusOK, "/"))
	assert.Contains(t, page, "order.placed 2,000+ 2,000+ failed")
	assert.Contains(t, page, "parcel.packed – not counted")
	assert.Contains(t, page, "shop/sms 1,000+ in doubt")
	assert.Contains(t, text(s.get(http.StatusOK, "/do/pause?topic=order.placed")), "2,000+ wait now.")
	assert.Contains(t, text(s.get(http.StatusOK, "/do/pause?topic=parcel.packed")), "how many wait now is not known.")
}

// On a phone, where a table has no head, the cells of the shards were numbers without a name.
func TestShardsHaveNames(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.exec(`insert into {schema}.outbox_relay (relay_id, expires_at, name) values ('00000000-0000-7000-8000-000000000001', now() + interval '1 hour', 'relay-a')`)
	s.exec(`update {schema}.outbox_shard set relay_id = '00000000-0000-7000-8000-000000000001', expires_at = now() + interval '1 hour'`)
	s.pending("order.placed", "p1")
	page := s.get(http.StatusOK, "/outbox")
	assert.Contains(t, page, `<td class="r" data-label="shard 3"><span class="cell">1</span></td>`)
	assert.Contains(t, page, `data-label="shard 15"`)
}

// Without the journal's table, or the right to read it, rates are unknown and the rest of the page is there.
func TestRatesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.pending("order.placed", "p1")
	s.exec(`drop table {schema}.outbox_journal`)
	assert.Contains(t, row(s.get(http.StatusOK, "/outbox"), "topics-table", "order.placed"), "order.placed flows – – 1")
	s.get(http.StatusOK, "/")
}

// The page has a bounded length, and says what it leaves out.
func TestManyTopics(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.exec(`insert into {schema}.outbox_journal select date_trunc('minute', now()), 'topic-' || n, gen_random_uuid(), n, 0 from generate_series(1, 300) n`)
	page := s.get(http.StatusOK, "/outbox")
	assert.Contains(t, text(page), "Topics 300, trouble first")
	assert.Contains(t, text(page), "100 more, with less trouble, are not shown.")
	assert.NotEmpty(t, row(page, "topics-table", "topic-300"), "the busiest is shown")
	assert.Equal(t, 200, strings.Count(page, "topic-")-strings.Count(page, "topic=topic-"))
}

func TestEvent(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.fail()
	s.pending("order.placed", "0198c0de-98e0-7b44-8d21-6fa0c2e1b377")
	page := s.get(http.StatusOK, "/event?id=e1")
	assert.Contains(t, text(page), "A person decides: it is dead in 1 place. 0 consumers of 2 completed it.")
	assert.Contains(t, text(page), "claim shop/book dead It failed as often as claim.max_attempts allows.")
	assert.Contains(t, text(page), "millrace dead replay --consumer shop/book --schema "+s.schema+" e1")
	assert.Contains(t, text(s.get(http.StatusOK, "/event?id=0198c0de")), "It waits to be published.", "a short ID will do")
	assert.Contains(t, text(s.get(http.StatusOK, "/event?id="+url.QueryEscape("00000000…0000"))), "no known event has a short ID like 00000000…0000")
	s.pending("order.placed", "0198c0de-98e0-7b44-8d21-000000000000")
	assert.Contains(t, text(s.get(http.StatusOK, "/event?id=0198c0de-98e0")), "the event ID 0198c0de-98e0 is ambiguous; it can mean:")
	assert.Contains(t, text(s.get(http.StatusOK, "/event?id=e2")), "parcel.packed")
}

// doctor counted only the events of the 1,000 most frequent errors, beside a sidebar that counts all.
func TestDeadLettersOfManyErrors(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.exec(`insert into {schema}.consumer (name) values ('shop/book')`)
	s.exec(`insert into {schema}.claim_failed (consumer, record, event_id, key, state, attempts, reason, error, handler, topic, headers, payload, first_at, failed_at)
		select 1, md5(n::text)::uuid, 'e' || n, 'k', 'dead', 3, 'attempts', 'no ' || translate(n::text, '0123456789', 'ghijklmnop'), 'h', 't', convert_to('{"uuid": "", "metadata": {}}', 'UTF8'), '', now(), now() from generate_series(1, 2000) n`)
	page := text(s.get(http.StatusOK, "/"))
	assert.Contains(t, page, "Dead letters 2,000")
	assert.Contains(t, page, "2000 dead letters with 1000 or more different errors")
}

// A part of an ID was looked up among all rows of the archive, by every change of an open page, until the page timed out.
func TestPartOfAnEventIDInLargeTables(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	s, away := openFrail(t, func(c *console.Config) { c.Timeout = 2 * time.Second })
	s.fail()
	s.exec(`update {schema}.claim_failed set event_id = '10023456' where event_id = 'e1'`)
	tx, err := s.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), `lock `+s.schema+`.outbox_archive`) // its read does not end, as if it had many rows
	require.NoError(t, err)
	const help = "The tables are too large to look up a part of an event ID here: give the whole ID, or run: "
	page := text(s.get(http.StatusOK, "/event?id=0198c0de"))
	assert.Contains(t, page, help+"millrace explain --schema "+s.schema+" 0198c0de")
	assert.Contains(t, text(s.get(http.StatusOK, "/event?id=10023456")), help)
	require.NoError(t, tx.Rollback(t.Context()))
	assert.Contains(t, text(s.get(http.StatusOK, "/event?id=0198c0de")), help, "an open page does not ask again each time")
	part := 0x0198d000
	require.Eventually(t, func() bool {
		part++ // what was not found in time is not searched again
		return !strings.Contains(text(s.get(http.StatusOK, fmt.Sprintf("/event?id=%08x", part))), help)
	}, wait, pause, "another part is looked up; on a busy machine not each time")
	require.Eventually(t, func() bool { return strings.Contains(text(s.get(http.StatusOK, "/event?id=10023456")), "no user 7") }, wait, pause, "a whole ID of another system is looked up all the same")
	away(true)
	var down string
	require.Eventually(t, func() bool {
		_, down = s.ask("/event?id=0198c0de")
		return strings.Contains(down, "the network is down")
	}, wait, pause)
	assert.NotContains(t, text(down), help, "the database does not answer, so nothing is known of its tables")
}

func TestEffects(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.exec(`insert into {schema}.effect (created_at, key, state, token, calls, first_called_at, called_at, until, reason)
		select now(), 'shop/sms/e' || i, 'doubt', gen_random_uuid(), 1, now() - interval '1 hour', now() - interval '1 hour', now() - interval '1 hour', 'timeout' from generate_series(1, 3) i`)
	assert.Contains(t, text(s.get(http.StatusOK, "/")), "shop/sms 3 in doubt")
	page := text(s.get(http.StatusOK, "/effects?key=shop/sms/e1"))
	assert.Contains(t, page, "Did this happen?")
	assert.Contains(t, page, "timeout")
	assert.Contains(t, text(s.get(http.StatusOK, "/do/resolve?key=shop/sms/e1&happened=yes")), "Record that shop/sms/e1 happened?")
	again := s.act(http.StatusBadRequest, "/do/resolve?key=shop/sms/e1&happened=yes", "response", `{"id": 7`, "note", "seen there")
	assert.Contains(t, text(again), "The response is not JSON")
	assert.Contains(t, again, `value="{&#34;id&#34;: 7"`, "what was filled in stays")
	assert.Contains(t, again, `>seen there</textarea>`)
	assert.Zero(t, s.count(`select count(*) from {schema}.effect_resolution`))
	assert.Contains(t, text(s.act(http.StatusOK, "/do/resolve?key=shop/sms/e1&happened=yes", "response", `{"id": 7}`, "note", "seen there")), "Recorded that shop/sms/e1 happened.")
	assert.Contains(t, text(s.act(http.StatusOK, "/do/resolve?key=shop/sms/e2&happened=no")), "Recorded that shop/sms/e2 did not happen.")
	assert.Equal(t, 2, s.count(`select count(*) from {schema}.effect_resolution where resolved_by = 'ada'`))
	assert.Contains(t, text(s.reveal(http.StatusOK, "/effects?state=done&key=shop/sms/e1")), `"id": 7`)
	assert.Contains(t, text(s.get(http.StatusOK, "/do/resolve?key=shop/sms/e1&happened=no")), "It is not in doubt: done.")
	assert.Contains(t, text(s.get(http.StatusOK, "/effects?state=not_done")), "the last call first, of the last 10,000 not done")
	s.get(http.StatusNotFound, "/do/resolve?key=shop/sms/e3&happened=perhaps")
	s.get(http.StatusNotFound, "/effects?key=nothing")
	s.get(http.StatusNotFound, "/effects?state=lost")
}

func TestKeys(t *testing.T) {
	t.Parallel()
	s := open(t, everything, func(c *console.Config) { c.Mask = []string{"X-Token"} })
	s.exec(`insert into {schema}.idempotency_key (id, service, scope, key, request, fingerprint, status, headers, body)
		values (sha256('k'), 'shop', '\x01', 'key-1', 'POST /orders', '', 201, convert_to(E'Content-Type: application/json\n Set-Cookie: secret\n X-Token: secret', 'UTF8'), convert_to('{"id": 7}', 'UTF8'))`)
	assert.Regexp(t, `key-1 shop POST /orders executed 201`, text(s.get(http.StatusOK, "/keys")))
	page := text(s.reveal(http.StatusOK, "/keys?key=key-1"))
	assert.Contains(t, page, "POST /orders: executed, status 201.")
	assert.Contains(t, page, `"id": 7`)
	assert.NotContains(t, page, "secret", "also where the handler added to what was there")
	assert.Contains(t, text(page), "Set-Cookie •••••• X-Token ••••••")
	assert.Contains(t, text(page), "Keys are searched in the newest 50,000 answers, IDs in all. Older keys: millrace keys show --schema "+s.schema+" key-1")
	for _, id := range []string{"8254c329", "8254c329a", "8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a"} {
		assert.Contains(t, text(s.get(http.StatusOK, "/keys?key="+id)), "POST /orders: executed, status 201.", id)
	}
	for _, id := range []string{"8254c32", "8254c328", "8254c329A", "8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a0"} {
		assert.Contains(t, text(s.get(http.StatusOK, "/keys?key="+id)), "Nothing is stored for this key", id)
	}
	id := s.form(s.get(http.StatusOK, "/do/forget?id=8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a")).Get("id")
	assert.Contains(t, text(s.act(http.StatusOK, "/do/forget?id="+id, "note", "our mistake")), "The answer to POST /orders with the key key-1 was forgotten.")
	assert.Zero(t, s.count(`select count(*) from {schema}.idempotency_key`))
	assert.Contains(t, text(s.get(http.StatusOK, "/do/forget?id="+id)), "The answer is not stored any more.")
}

func TestSeveralDatabases(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look, func(c *console.Config) {
		d := c.Databases[0]
		d.Name, d.Schema = "payments", "no_such_schema"
		c.Databases = append(c.Databases, d)
	})
	s.fail()
	page := s.get(http.StatusOK, "/")
	assert.Contains(t, page, `href="/console/payments/"`)
	assert.Contains(t, text(page), "2 databases")
	s.base = "/console/payments"
	assert.NotContains(t, text(s.get(http.StatusOK, "/")), "Dead letters 2")
	s.base = "/console/stock"
	s.get(http.StatusNotFound, "/")
	s.get(http.StatusNotFound, "")
	s.base = "/console/orders"
	assert.Contains(t, s.get(http.StatusOK, ""), "<title>Overview", "the slash at the end may be left out")
}

// An open page hears of a change, and of the end.
func TestLive(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.server.URL+s.base+"/live", nil)
	require.NoError(t, err)
	answer, err := s.client.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	assert.Equal(t, "text/event-stream", answer.Header.Get("Content-Type"))
	lines := bufio.NewScanner(answer.Body)
	next := func() string {
		for lines.Scan() {
			if event, found := strings.CutPrefix(lines.Text(), "event: "); found {
				return event
			}
		}
		return "end"
	}
	assert.Equal(t, "changed", next())
	s.fail()
	assert.Equal(t, "changed", next())
	s.page.Close()
	assert.Equal(t, "end", next())
	s.page.Close() // once more does nothing
}

// However many pages are open, they read by few connections.
func TestSessionsShareTheirFigures(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	var pages sync.WaitGroup
	for range 50 {
		pages.Go(func() {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.server.URL+s.base+"/outbox", nil)
			if !assert.NoError(t, err) {
				return
			}
			answer, err := s.client.Do(r)
			if assert.NoError(t, err) {
				assert.Equal(t, http.StatusOK, answer.StatusCode)
				assert.NoError(t, answer.Body.Close())
			}
		})
	}
	pages.Wait()
	assert.LessOrEqual(t, int(s.pool.Stat().TotalConns()), 4, "at most four reads at once")
}

// The page counts ages on, from the times that it has beside them.
func TestAgesHaveTheirTimes(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	s.pending("order.placed", "p1")
	assert.Regexp(t, `oldest <time datetime="\d{4}-\d\d-\d\dT[^"]*Z" title="[^"]*" data-since>\d+\.\d s</time>`, s.get(http.StatusOK, "/outbox"))
	assert.Contains(t, s.get(http.StatusOK, "/"), `data-now>`)
}

// The outbox's page lists the delayed events that are due next, with when, topic and key.
func TestDelayedEvents(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look)
	assert.NotContains(t, s.get(http.StatusOK, "/outbox"), "delayed-table")
	s.exec(`insert into {schema}.outbox_delayed (due_at, hash, event_id, topic, key, headers, payload)
		select now() + (n - 1) * interval '1 day' - interval '1 minute', n, 'later-' || n, 'reminder', 'k<' || n, convert_to('{}', 'UTF8'), '' from generate_series(1, 21) n`)
	s.tells("/outbox", "Delayed the next 20 of 21; all: millrace outbox list --state delayed")
	page := s.get(http.StatusOK, "/outbox")
	assert.Contains(t, row(page, "delayed-table", "later-1"), "later-1 reminder k<1")
	assert.Contains(t, row(page, "delayed-table", "later-1"), "due for")
	assert.Contains(t, row(page, "delayed-table", "later-2"), "23h")
	assert.Contains(t, page, `href="/console/orders/event?id=later-20"`)
	assert.NotContains(t, page, "later-21")
	assert.Contains(t, text(s.get(http.StatusOK, "/event?id=later-20")), "It enters the outbox when it is due")
}
