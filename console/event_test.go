package console_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/console"
	"github.com/millrace-go/millrace/internal/explain"
	"github.com/millrace-go/millrace/internal/reach"
)

const lived = "0198c0de-98e0-7b44-8d21-6fa0c2e1b377"

// life puts an event into the tables that waited 60 ms in the outbox, was handled by one consumer, and failed twice at another.
func (s *site) life(trace string) {
	var at string // one moment for all statements
	require.NoError(s.t, s.pool.QueryRow(s.t.Context(), `select quote_literal(now()) || '::timestamptz'`).Scan(&at))
	exec := func(sql string, args ...any) { s.exec(strings.ReplaceAll(sql, "{at}", at), args...) }
	s.exec(`create table if not exists {schema}.outbox_archive_all partition of {schema}.outbox_archive default`)
	exec(`insert into {schema}.outbox_archive (published_at, shard, seq, event_id, topic, key, headers, payload, created_at, relay, attempts)
		values ({at} - interval '59.94 s', 3, 1, $1, 'order.placed', 'order-7', convert_to('{"traceparent": "00-' || $2 || '-00f067aa0ba902b7-01"}', 'UTF8'), '', {at} - interval '60 s', 'relay-c:12', 2)`, lived, trace)
	exec(`insert into {schema}.consumer (name) values ('shop/charge'), ('shop/ship')`)
	exec(`insert into {schema}.processed (event_id, consumer, claimed_at) values ($1, 1, {at} - interval '59.9 s')`, lived)
	exec(`insert into {schema}.claim_failed (consumer, record, event_id, state, attempts, reason, error, history, handler, topic, headers, payload, first_at, failed_at)
		values (2, $1::uuid, $1, 'dead', 2, 'attempts', 'carrier: 422',
			jsonb_build_array(jsonb_build_object('at', {at} - interval '59 s', 'by', 'ship-1', 'error', 'carrier: 422 first'), jsonb_build_object('at', {at} - interval '50 s', 'by', 'ship-2', 'error', 'carrier: 422')),
			'h', 'order.placed', convert_to('{"uuid": "e", "metadata": {}, "origin": {"topic": "order.placed", "partition": "7", "offset": "9182441"}}', 'UTF8'), 'x', {at} - interval '59 s', {at} - interval '50 s')`, lived)
	exec(`insert into {schema}.effect (created_at, key, state, token, calls, first_called_at, called_at, until, settled_by, settled_at, event_id)
		values (now(), 'shop/card/' || $1::text, 'done', gen_random_uuid(), 1, {at} - interval '59.8 s', {at} - interval '59.8 s', now(), 'call', {at} - interval '59.659 s', $1)`, lived)
}

// The page of an event shows how long it was at each place, which relay sent it, where it is at the broker, and each attempt.
func TestTheLifeOfAnEvent(t *testing.T) {
	t.Parallel()
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	s := open(t, console.Look, func(c *console.Config) { c.TraceURL = "https://tempo.example/trace/{trace_id}?from=console" })
	s.life(trace)
	page := s.get(http.StatusOK, "/event?id="+lived)
	says := text(page)
	for _, what := range []string{
		"Outbox to broker 60 ms", "Outbox to first consumer 100 ms", "Sent by relay relay-c:12", "At the broker partition 7, offset 9182441",
		"by relay relay-c:12 at attempt 2, and is archived", "Its place there: partition 7, offset 9182441.",
		"attempt in ship-1 failed carrier: 422 first", "attempt in ship-2 failed", "141 ms at +200 ms", "40 ms at +60 ms", "so far ",
	} {
		assert.Contains(t, says, what)
	}
	assert.Contains(t, page, `<a href="https://tempo.example/trace/`+trace+`?from=console" rel="noreferrer">`)
	assert.NotContains(t, page, "ZgotmplZ")

	// The server keeps when transactions committed, so the time of the handler is known.
	e, err := explain.Exactly(t.Context(), s.pool, s.schema, lived, time.Time{}, reach.Reach{}, 0)
	require.NoError(t, err)
	for _, stage := range e.Stages {
		if stage.Of == "shop/charge" {
			require.NotNil(t, stage.End)
			assert.WithinDuration(t, time.Now(), *stage.End, time.Minute)
		}
	}
}

// The ID of a trace comes with the event. What is none is no part of an address.
func TestATraceThatIsNone(t *testing.T) {
	t.Parallel()
	s := open(t, console.Look, func(c *console.Config) { c.TraceURL = "https://tempo.example/{trace_id}" })
	s.life(`../../evil?<b>`)
	page := s.get(http.StatusOK, "/event?id="+lived)
	assert.Contains(t, text(page), "../../evil?<b>")
	assert.NotContains(t, page, "tempo.example")
}

func TestTraceURLs(t *testing.T) {
	t.Parallel()
	for at, right := range map[string]bool{
		"https://tempo.example/trace/{trace_id}": true, "http://localhost:16686/trace/{trace_id}": true, "https://grafana.example/explore?left={trace_id}": true,
		"https://tempo.example/trace/": false, "javascript:alert({trace_id})": false, "/trace/{trace_id}": false, "https:///{trace_id}": false, "data:text/html,{trace_id}": false,
	} {
		err := console.Config{TraceURL: at}.WithDefaults().Validate()
		if right {
			assert.NotContains(t, err.Error(), "TraceURL", at)
		} else {
			assert.ErrorContains(t, err, "Config.TraceURL is", at)
		}
	}
}
