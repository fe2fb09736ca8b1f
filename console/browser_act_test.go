package console_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Each action starts at a button, asks on a page of its own, and does what it said there.
func TestActionsInABrowser(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.many(101)
	s.pending("order.placed", "p1")
	s.exec(`insert into {schema}.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, attempts, reason)
		select 1, 3, n * 10 + i, 'o' || n || i, 'order.placed', '', convert_to('{}', 'UTF8'), '', now(), 'dead', 3, r || i from (values (1, 'too large: '), (2, 'no such topic: ')) v(n, r), generate_series(1, 2) i`)
	s.exec(`insert into {schema}.effect (created_at, key, state, token, calls, first_called_at, called_at, until, reason)
		select now(), 'shop/sms/e' || i, 'doubt', gen_random_uuid(), 1, now() - interval '1 hour', now() - interval '1 hour', now() - interval '1 hour', 'timeout' from generate_series(1, 2) i`)
	s.exec(`insert into {schema}.idempotency_key (id, service, scope, key, request, fingerprint, status, headers, body)
		values (sha256('k'), 'shop', '\x01', 'key-1', 'POST /orders', '', 201, convert_to('Content-Type: application/json', 'UTF8'), convert_to('{"id": 7}', 'UTF8'))`)
	b := s.tab(t)
	b.open("/keys?key=key-1")
	b.press("Show it")
	b.shows(`"id": 7`)
	for _, c := range []struct {
		path, press string            // where it starts
		fill        map[string]string // on the page that asks
		confirm     string
		says        string
		count       string // a query that counts 1 then, and 0 before
	}{
		{"/dead/event?id=e1&consumer=shop/book", "Replay …", nil, "Replay 1 event", "1 of 1", `select count(*) from {schema}.claim_failed where event_id = 'e1' and replayed`},
		{"/dead/event?id=e2", "Discard …", nil, "Discard 1 event", "1 event was discarded.", `select count(*) from {schema}.claim_audit where event_id = 'e2' and action = 'discard'`},
		{"/dead?topic=t", "Discard 101 …", map[string]string{"typed": "101"}, "Discard 101 events", "101 events were discarded.", `select count(*) / 101 from {schema}.claim_audit where event_id like 'f%' and action = 'discard'`},
		{"/outbox", "Pause …", nil, "Pause the topic", "Topic order.placed is paused.", `select count(*) from {schema}.outbox_topic where paused_by = 'ada' and pause_note = 'by hand'`},
		{"/outbox", "Resume …", nil, "Resume the topic", "Topic order.placed is resumed.", `select count(*) from {schema}.outbox_audit where action = 'resume'`},
		{"/effects?key=shop/sms/e1", "It happened …", map[string]string{"response": `{"id": 7}`}, "Record that it happened", "Recorded that shop/sms/e1 happened.", `select count(*) from {schema}.effect_resolution where key = 'shop/sms/e1' and state = 'done'`},
		{"/effects?key=shop/sms/e2", "It did not happen …", nil, "Record that it did not happen", "Recorded that shop/sms/e2 did not happen.", `select count(*) from {schema}.effect_resolution where key = 'shop/sms/e2' and state = 'not_done'`},
		{"/keys?key=key-1", "Forget the answer …", nil, "Forget the answer", "was forgotten.", `select count(*) from {schema}.idempotency_key_audit where key = 'key-1' and action = 'forget'`},
	} {
		b.open(c.path)
		b.press(c.press)
		b.fill("note", "by hand")
		for field, text := range c.fill {
			b.fill(field, text)
		}
		assert.Zero(t, s.count(c.count), "%s: nothing is done yet", c.press)
		b.press(c.confirm)
		b.shows(c.says)
		s.comes(1, c.count)
		assert.Empty(t, b.wrong(), c.press)
	}
	b.open("/effects?state=done&key=shop/sms/e1")
	b.press("Show it")
	b.shows(`"id": 7`)
	for _, c := range [][4]string{{"too large: <n>", "Retry …", "Retry 2 events", "2 events will be retried by a running relay."}, {"no such topic: <n>", "Discard …", "Discard 2 events", "2 events will be discarded by a running relay."}} {
		b.open("/outbox")
		b.press(c[0])
		b.press(c[1])
		b.press(c[2])
		b.shows(c[3])
	}
	assert.Equal(t, 2, s.count(`select count(*) from {schema}.outbox_failed where command = 'retry' and reason like 'too large%'`))
	assert.Equal(t, 2, s.count(`select count(*) from {schema}.outbox_failed where command = 'discard' and reason like 'no such topic%'`))
}

// Who does not type the number discards nothing: neither the browser nor the server lets him.
func TestTheNumberIsTypedInABrowser(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.many(101)
	b := s.tab(t)
	b.open("/do/discard?topic=t")
	b.press("Discard 101 events")
	b.until(`document.querySelector("#typed:invalid") === document.activeElement`)
	b.fill("typed", "100")
	b.press("Discard 101 events")
	b.shows("Type the number of events to go on. Nothing was changed.")
	assert.Zero(t, s.count(`select count(*) from {schema}.claim_audit`))
}

// A payload comes back from a form as it was sent there, but for what a person changes.
func TestEditInABrowser(t *testing.T) {
	t.Parallel()
	s := open(t, everything)
	s.fail()
	s.exec(`update {schema}.claim_failed set payload = convert_to($1, 'UTF8') where event_id = 'e2'`, "\n\n  first \t\n</textarea><script>alert(1)</script>&amp;\nlast \n")
	b := s.tab(t)
	b.open("/dead/edit?id=e2&consumer=shop/book")
	b.press("Show it")
	b.press("Show what changes")
	b.shows("Nothing is changed.")
	b.press("Back")

	b.open("/dead/event?id=e1&consumer=shop/book")
	b.press("Edit …")
	b.until(`location.pathname.endsWith("/dead/edit")`) // the page before has a "Show it", too
	b.press("Show it")
	b.fill("payload", strings.ReplaceAll("{\n  'email': 'grace@example.com',\n  'n': 12345678901234567890\n}", "'", `"`))
	b.press("Show what changes")
	b.shows(`- "email": "ada@example.com", + "email": "grace@example.com",`)
	b.press("Edit again")
	b.until(`document.getElementById("payload").value.includes("grace")`)
	b.press("Show what changes")
	b.fill("note", "a wrong address")
	b.press("Write the payload")
	b.shows("The payload of e1 is written.")
	assert.Equal(t, `{"email":"grace@example.com","n":12345678901234567890}`, s.payload())
	b.press("Go on")
	b.press("Show it")
	b.shows("grace@example.com")
	assert.Empty(t, b.wrong())
}
