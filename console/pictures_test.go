package console_test

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/console"
)

// incident puts a bad half hour into the tables: Kafka refuses a topic, a consumer fails, and effects are in doubt.
func (s *site) incident() {
	s.exec(`insert into {schema}.outbox_relay (relay_id, expires_at, name, topics) values
		('00000000-0000-7000-8000-00000000000a', now() + interval '1 hour', 'relay-a/41', '[]'), ('00000000-0000-7000-8000-00000000000b', now() + interval '1 hour', 'relay-b/7', '[]'),
		('00000000-0000-7000-8000-00000000000c', now() + interval '1 hour', 'relay-c/12',
			'[{"topic": "invoice.created", "state": "failing", "for_ms": 252000, "next_ms": 22000, "error": "TOPIC_AUTHORIZATION_FAILED: not authorized to access topics"}]')`)
	s.exec(`update {schema}.outbox_shard set relay_id = ('00000000-0000-7000-8000-00000000000' || (array['a', 'b', 'c'])[shard % 3 + 1])::uuid, expires_at = now() + interval '1 hour'`)
	s.exec(`update {schema}.outbox_shard set deaths = array[gen_random_uuid(), gen_random_uuid()], suspect = '0198c0de-98e0-7b44-8d21-6fa0c2e1b377' where shard = 11`)
	s.exec(`insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload, created_at)
		select i % 16, {schema}.outbox_next((i % 16)::smallint), '0198c0de-' || lpad(i::text, 4, '0') || '-7b44-8d21-6fa0c2e1b377', t, 'order-' || i, convert_to('{}', 'UTF8'), '', now() - old
		from (values ('order.placed', 96, interval '1 s'), ('payment.captured', 41, '1 s'), ('stock.reserved', 161, '160 s'), ('parcel.packed', 18, '1 s'), ('invoice.created', 1180, '252 s')) v(t, n, old),
		generate_series(1, n) i`)
	s.exec(`insert into {schema}.outbox_topic (topic, paused_at, paused_by, pause_note) values ('stock.reserved', now() - interval '160 s', 'grace', 'warehouse migration')`)
	s.exec(`insert into {schema}.outbox_journal
		select date_trunc('minute', now()) - m * interval '1 minute', t, ('00000000-0000-7000-8000-00000000000' || relay)::uuid, (n * share)::int, case when t = 'order.placed' and m < 9 then 1 else 0 end
		from (values ('order.placed', 8900, 0), ('payment.captured', 2500, 0), ('stock.reserved', 4700, 4), ('parcel.packed', 1300, 0), ('invoice.created', 3100, 5), ('audit.log', 40, 0)) v(t, rate, stood),
			generate_series(0, 60) m, (values ('a', 0.4), ('b', 0.35), ('c', 0.25)) r(relay, share),
			lateral (select case when m < stood then 0 else rate * (1 + 0.2 * sin(m / 6.0 + rate) + 0.08 * sin(m * 1.9 * rate)) end as n) w`)
	s.exec(`insert into {schema}.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, attempts, reason, failed_at)
		select i, i % 16, i, '0198c0d0-' || lpad(i::text, 4, '0') || '-7b44-8d21-6fa0c2e1b377', t, '', convert_to('{}', 'UTF8'), '', now() - interval '20 min', st, 3, r || i, now() - i * interval '1 min'
		from (values ('invoice.created', 'dead', 4, 'message of 1100021 bytes is larger than the broker allows: '), ('order.placed', 'retrying', 7, 'publish: i/o timeout after ')) v(t, st, n, r), generate_series(1, n) i`)
	s.exec(`insert into {schema}.consumer (name) values ('shop/book-shipment'), ('shop/update-ledger'), ('shop/notify-customer'), ('shop/charge-card')`)
	s.exec(`insert into {schema}.claim_failed (consumer, record, event_id, key, state, attempts, reason, error, history, handler, topic, headers, payload, first_at, failed_at)
		select c, gen_random_uuid(), '0198c0d1-' || lpad((row_number() over () + 1000)::text, 4, '0') || '-7e31-b0c2-4f19d3a8e655', 'order-' || 58000 + i, st, case st when 'blocked' then 0 else 2 end, r, x,
			jsonb_build_array(jsonb_build_object('at', now() - interval '26 min', 'by', 'book-2b1d', 'error', x), jsonb_build_object('at', now() - interval '25 min', 'by', 'book-7f9c', 'error', x)), 'h', t,
			convert_to('{"uuid": "e", "metadata": {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tenant": "harbor"}}', 'UTF8'),
			convert_to('{"order": ' || 58000 + i || ', "service": "EXPRESS2", "to": {"name": "Ada", "postcode": "ZZ1"}, "weight_g": 1250}', 'UTF8'),
			now() - interval '26 min', now() - i * interval '7 s'
		from (values (1, 'dead', 'attempts', 'carrier: 422 unknown service code "EXPRESS2"', 'parcel.packed', 204), (1, 'blocked', 'blocked', '', 'parcel.packed', 31),
			(2, 'dead', 'attempts', 'dial tcp 10.4.2.9:5432: connect: connection refused', 'payment.captured', 68), (2, 'dead', 'permanent', 'decode payment.captured: unknown currency "GBX"', 'payment.captured', 31),
			(3, 'dead', 'permanent', 'no customer 1182', 'order.placed', 8), (3, 'retrying', 'error', 'sms gateway: 503 Service Unavailable', 'order.placed', 12),
			(1, 'dead', 'killed', 'its process was killed 3 times', 'parcel.packed', 3)) v(c, st, r, x, t, n), generate_series(1, n) i`)
	s.exec(`insert into {schema}.claim_run (service, name, beat_at, paused) values
		('shop', 'ledger-7f9c/1', now() + interval '1 hour', '[{"consumer": "shop/update-ledger", "seconds": 3792, "left": -3578, "error": "dial tcp 10.4.2.9:5432: connect: connection refused"}]'),
		('shop', 'ledger-2b1d/1', now() + interval '1 hour', '[{"consumer": "shop/update-ledger", "seconds": 3790, "left": -3571, "error": "dial tcp 10.4.2.9:5432: connect: connection refused"}]')`)
	s.exec(`create table if not exists {schema}.outbox_archive_all partition of {schema}.outbox_archive default`)
	s.exec(`insert into {schema}.outbox_archive (published_at, shard, seq, event_id, topic, key, headers, payload, created_at, relay, attempts)
		select now() - interval '28 min' + interval '60 ms', 3, 1, '0198c0d1-1001-7e31-b0c2-4f19d3a8e655', 'parcel.packed', 'order-58001',
			convert_to('{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}', 'UTF8'), '', now() - interval '28 min', 'relay-c:12', 1`)
	s.exec(`update {schema}.claim_failed set headers = convert_to('{"uuid": "e", "metadata": {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tenant": "harbor"}, "origin": {"topic": "parcel.packed", "partition": "7", "offset": "9182441"}}', 'UTF8')
		where event_id = '0198c0d1-1001-7e31-b0c2-4f19d3a8e655'`)
	s.exec(`insert into {schema}.claim_key values (1, 'order-58002', 1000, now() - interval '4 min')`)
	s.exec(`insert into {schema}.consumer (name) values ('shop/index-order'), ('shop/count-visits')`)
	s.exec(`insert into {schema}.journal
		select date_trunc('minute', now()) - m * interval '1 minute', c, run, n, n * dup / 1000, n * con / 1000, case when m < fails then n / 14 else m % 2 end, n * ms, ms * 9 + m % 7 * 11
		from (values (1, 2400, 3, 5, 26, 18), (2, 5200, 2, 2, 4, 0), (3, 1900, 21, 1, 12, 96), (4, 1200, 4, 0, 0, 210), (5, 8800, 1, 3, 0, 7)) v(c, rate, dup, con, fails, ms),
			generate_series(0, 60) m, generate_series(1, 2) run,
			lateral (select case when c = 2 and m < 4 then 0 else (rate * (1 + 0.18 * sin(m / 5.0 + c) + 0.07 * sin(m * 1.7 * c)))::int end as n) w`)
	s.exec(`insert into {schema}.effect (created_at, key, state, token, calls, first_called_at, called_at, until, reason, settled_by, settled_at, event_id)
		select now(), k, st, gen_random_uuid(), 1, now() - since, now() - since, now() - since, r, w, case w when '' then null else now() end, split_part(k, '/', 3)
		from (values ('shop/sms/0198c0d1-77aa-7e31-b0c2-4f19d3a8e655', 'doubt', interval '18 min', '', ''), ('shop/sms/0198c0d9-03f1-7e31-b0c2-4f19d3a8e655', 'doubt', '9 min', 'no answer within 10s', ''),
			('shop/carrier/0198c0de-98e0-7e31-b0c2-4f19d3a8e655', 'doubt', '67 s', '', ''), ('shop/card/0198bfa0-98e0-7e31-b0c2-4f19d3a8e655', 'done', '3 h', '', 'ada')) v(k, st, since, r, w)`)
	s.exec(`insert into {schema}.effect_resolution (resolved_at, key, state, before, reason, resolved_by, note) values
		(now() - interval '52 min', 'shop/sms/0198bfe2-98e0-7e31-b0c2-4f19d3a8e655', 'done', 'doubt', 'timeout', 'grace', 'delivery report 77102'),
		(now() - interval '2 h', 'shop/card/0198bfa0-98e0-7e31-b0c2-4f19d3a8e655', 'done', 'doubt', '', 'ada', 'in the settlement file')`)
	s.exec(`insert into {schema}.idempotency_key (id, service, scope, key, request, fingerprint, status, headers, body, created_at)
		select sha256(('k' || i)::bytea), 'shop', '\x0102030405060708', 'client-7-order-' || 58000 + i, 'POST /orders', '', case when i % 5 = 0 then 409 else 201 end,
			convert_to('Content-Type: application/json', 'UTF8'), convert_to('{"id": ' || i || '}', 'UTF8'), now() - i * interval '11 s' from generate_series(1, 12) i`)
	s.exec(`insert into {schema}.idempotency_key_audit (at, actor, action, service, key, request, status, answered_at, note)
		values (now() - interval '3 h', 'linus', 'forget', 'shop', 'client-7-order-57020', 'POST /orders', 409, now() - interval '4 h', 'our mistake')`)
	s.exec(`insert into {schema}.outbox_audit (at, actor, action, events, detail) values (now() - interval '2 min', 'linus', 'replay', 310, '{"topic": "order.placed", "to": "order.backfill", "note": "a new consumer"}')`)
	s.exec(`insert into {schema}.outbox_replay (id, topic, until, to_topic, published_at, rate, selected, more) values (1, 'order.placed', now(), 'order.backfill', now() - interval '1 day', 50, 4000, false)`)
	s.archived("order.placed", 4000)
	s.archived("parcel.packed", 900)
	s.exec(`insert into {schema}.outbox_audit (at, actor, action, events, detail) values (now() - interval '160 s', 'grace', 'pause', 0, '{"topic": "stock.reserved", "note": "warehouse migration"}'),
		(now() - interval '26 h', 'deploy-bot', 'retry', 118, '{"group": "5e10b2d4", "note": "release 2.14.0"}')`)
	s.exec(`insert into {schema}.claim_replay (actor, note, selection, rate, max_failed, up_to, selected, replayed, in_flight, started_at)
		values ('grace', 'the sms gateway is back', '{"consumer": "shop/notify-customer", "states": ["dead", "retrying"]}', 10, 0.05, 1000, 480, 312, 2, now() - interval '1 min')`)
	s.exec(`insert into {schema}.claim_replay_event (id, replay) select id, 1 from {schema}.claim_failed where state in ('blocked', 'retrying') or reason = 'killed'`)
	s.exec(`insert into {schema}.claim_audit (at, actor, action, consumer, event_id, detail) values
		(now() - interval '30 min', 'ada', 'edit', 'shop/book-shipment', '0198c0a7-11de-7e31-b0c2-4f19d3a8e655', '{"note": "postcode was a test value", "state": "dead", "reason": "attempts", "error": "carrier: 422 unknown postcode \"ZZ1\""}'),
		(now() - interval '27 h', 'ada', 'discard', 'shop/notify-customer', '0198bfc1-20bd-7e31-b0c2-4f19d3a8e655', '{"note": "load test of Nov 18", "state": "dead", "reason": "permanent", "error": "no customer 7"}')`)
}

// Each page shows an incident. With MILLRACE_PICTURES=DIR chromium writes pictures of the pages
// into DIR: dark, light, and of a phone. MILLRACE_PICTURES_OF has the looks or the names of those that are wanted, such as "dark overview-light".
// Default: all.
func TestPictures(t *testing.T) {
	b := &told{lag: map[string]int64{"order.placed shop.notify-customer": 312, "payment.captured shop.update-ledger": 44, "parcel.packed shop.book-shipment": 1046, "stock.reserved shop.count-visits": 0}}
	s := open(t, everything, b.of, func(c *console.Config) {
		c.Brokers[0].Subscriptions = func() (all []console.Subscription) {
			for of := range b.lag {
				topic, consumer, _ := strings.Cut(of, " ")
				all = append(all, console.Subscription{Consumer: consumer, Topic: topic})
			}
			return append(all, console.Subscription{Consumer: "shop.invoice-mail", Topic: "invoice.created"})
		}
		c.Mask, c.TraceURL = []string{"name"}, "https://tempo.example/trace/{trace_id}"
	})
	s.incident()
	pages := map[string]string{
		"overview": "/", "outbox": "/outbox", "consumers": "/consumers", "dead-letters": "/dead", "causes-of-one": "/dead?consumer=shop%2Fupdate-ledger", "dead-letter": "/dead/event?id=0198c0d1-1001-7e31-b0c2-4f19d3a8e655",
		"dry-run": "/do/replay?consumer=shop%2Fbook-shipment", "discard": "/do/discard?consumer=shop%2Fbook-shipment", "event": "/event?id=0198c0d1-1001-7e31-b0c2-4f19d3a8e655",
		"effects": "/effects?key=shop%2Fsms%2F0198c0d1-77aa-7e31-b0c2-4f19d3a8e655", "decide": "/do/resolve?happened=yes&key=shop%2Fsms%2F0198c0d1-77aa-7e31-b0c2-4f19d3a8e655",
		"replay": "/replay?id=1", "archive": "/outbox/archive?topic=order.placed", "archive-replay": "/outbox/archive/replay?id=1", "keys": "/keys", "key": "/keys?key=client-7-order-58001", "audit": "/audit",
	}
	s.pictures(pages)
	fleet := fleetOf(t, s)
	fleet.pictures(map[string]string{"fleet": "/"})
}

// pictures are those of pages, by their names.
func (s *site) pictures(pages map[string]string) {
	t := s.t
	for name, path := range pages {
		assert.NotContains(t, s.get(http.StatusOK, path), "ZgotmplZ", name)
	}
	into := os.Getenv("MILLRACE_PICTURES")
	if into == "" {
		return
	}
	only := strings.Fields(os.Getenv("MILLRACE_PICTURES_OF"))
	for name, path := range pages {
		for look, flags := range map[string][]string{
			"dark": {"--blink-settings=preferredColorScheme=0", "--window-size=1440,1000"}, "light": {"--blink-settings=preferredColorScheme=1", "--window-size=1440,1000"},
			"phone": {"--blink-settings=preferredColorScheme=1", "--window-size=390,1400"},
		} {
			if len(only) > 0 && !slices.Contains(only, look) && !slices.Contains(only, name+"-"+look) {
				continue
			}
			arguments := slices.Concat(flags, []string{
				"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--timeout=5000", "--user-data-dir=" + t.TempDir(),
				"--screenshot=" + filepath.Join(into, name+"-"+look+".png"), s.server.URL + s.base + path,
			})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			output, err := exec.CommandContext(ctx, "chromium", arguments...).CombinedOutput()
			cancel()
			require.NoError(t, err, string(output))
		}
	}
}
