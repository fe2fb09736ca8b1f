package deadletter_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

// billing is a claim of the consumer "billing/notify".
func (f *fixture) billing() *claim.Claim {
	cfg := claim.Config{Logger: silent, Ordered: true, Service: "billing", Consumer: func(string) string { return "notify" }}
	c, err := claim.New(f.store, cfg)
	require.NoError(f.t, err)
	return c
}

// deliver is what the broker does, once more.
func (f *fixture) deliver(c *claim.Claim, eventID string) {
	_, err := c.Middleware(f.handler)(message.NewMessageWithContext(f.t.Context(), eventID, nil))
	require.NoError(f.t, err)
}

func (f *fixture) redirect(s deadletter.Selection) (deadletter.Result, error) {
	return deadletter.Redirect(f.t.Context(), f.pool, f.schema, s, "billing/notify", me)
}

// The other consumer handles the events in their order, once, whatever the broker redelivers to either of them.
func TestRedirect(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, id := range []string{"1", "2", "3"} {
		f.keep(id, "labour/notify", "k", map[bool]string{true: "dead", false: "blocked"}[id == "1"], "attempts", "oops")
	}
	f.keep("4", "labour/notify", "k", "retrying", "attempts", "oops")
	f.record("billing/notify", "1")
	r, err := f.redirect(deadletter.Selection{Consumer: "labour/notify", States: []string{"dead", "blocked"}})
	require.NoError(t, err)
	assert.Equal(t, deadletter.Result{Done: 3, Behind: 2, Others: map[string]int{"retrying": 1}}, r)
	assert.Equal(t, map[string]string{"1": "retrying", "2": "blocked", "3": "blocked", "4": "retrying"}, f.states())
	assert.Equal(t, []string{"redirect 3", "redirect 2", "redirect 1"}, f.audited())
	assert.Equal(t, 3, f.count(`claim_audit where consumer = 'labour/notify' and detail->>'to' = 'billing/notify'`))

	c := f.billing()
	for _, id := range []string{"1", "2", "3"} {
		f.deliver(c, id)
		f.deliver(f.claim(claim.Config{}), id)
	}
	assert.Zero(t, f.count("effect"), "both consumers absorb what is redelivered")

	channel := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(c.Middleware)
	var mu sync.Mutex
	var handled []string
	router.AddConsumerHandler("notify", "topic", c.Subscriber("notify", channel), func(msg *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		handled = append(handled, msg.UUID+" "+string(msg.Payload)+" "+msg.Metadata.Get("a"))
		_, err := f.handler(msg)
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(t, router.Run(ctx)) })
	require.Eventually(t, func() bool { return f.count("effect") == 3 }, time.Minute, 5*time.Millisecond)
	cancel()
	running.Wait()
	assert.Equal(t, []string{"1 payload 1", "2 payload 1", "3 payload 1"}, handled)
	assert.Equal(t, map[string]string{"4": "retrying"}, f.states())
	f.deliver(c, "1")
	assert.Equal(t, 3, f.count("effect"))
}

// An event that the other consumer has handled, or handles at the moment, has no second effect.
func TestRedirectOfWhatTheOtherHasHandled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, id := range []string{"handled", "in flight", "kept"} {
		f.keep(id, "labour/notify", "", "dead", "attempts", "oops")
	}
	f.deliver(f.billing(), "handled")
	f.keep("kept", "billing/notify", "", "dead", "attempts", "its own")
	f.sql(`update {schema}.claim_failed set payload = 'its own' where error = 'its own'`) // its record was dropped since
	end := f.holdOf("billing/notify", "in flight")
	time.AfterFunc(100*time.Millisecond, end)
	r, err := f.redirect(deadletter.Selection{})
	require.NoError(t, err)
	assert.Equal(t, deadletter.Result{Done: 3, Known: 3}, r)
	assert.Equal(t, map[string]string{"kept": "dead"}, f.states())
	assert.Equal(t, 1, f.count("claim_failed where payload = 'its own'"))
}

// Also if its record is older than the other consumer's floor, which a partition that was missing has raised.
func TestRedirectOfWhatTheOtherHasHandledBelowItsFloor(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := uuid.Must(uuid.NewV7()).String()
	f.deliver(f.billing(), id)
	f.keep(id, "labour/notify", "", "dead", "attempts", "oops")
	f.sql(`update {schema}.consumer set floor = now() + interval '1 minute' where name = 'billing/notify'`)
	r, err := f.redirect(deadletter.Selection{Consumer: "labour/notify"})
	require.NoError(t, err)
	assert.Equal(t, deadletter.Result{Done: 1, Known: 1}, r)
	assert.Empty(t, f.states())
}

// An event that the other consumer has nacked comes back once: its redelivery is absorbed.
func TestRedirectOfWhatTheOtherHasNacked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keep("1", "labour/notify", "", "dead", "attempts", "oops")
	f.keep("1", "billing/notify", "", "nacked", "", "its own")
	f.sql(`update {schema}.claim_failed set headers = null, payload = null where state = 'nacked'`)
	r, err := f.redirect(deadletter.Selection{Consumer: "labour/notify"})
	require.NoError(t, err)
	assert.Equal(t, deadletter.Result{Done: 1}, r)
	assert.Equal(t, 1, f.count(`claim_failed where state = 'retrying' and payload = 'payload' and due_at <= now() and replayed`))
	f.deliver(f.billing(), "1")
	assert.Zero(t, f.count("effect"))
}

func TestRedirectToNobody(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keep("1", "labour/notify", "k", "dead", "attempts", "oops")
	_, err := f.redirect(deadletter.Selection{})
	require.ErrorIs(t, err, deadletter.ErrNoSuchConsumer)
	require.ErrorContains(t, err, `redirect failed events: no consumer of that name has run on this database: "billing/notify"`)
	for _, to := range []string{"", "labour/notify"} {
		_, err = deadletter.Redirect(t.Context(), f.pool, f.schema, deadletter.Selection{Consumer: "labour/notify"}, to, me)
		require.ErrorContains(t, err, "want one that differs from Selection.Consumer")
	}
	assert.Equal(t, map[string]string{"1": "dead"}, f.states())
	assert.Empty(t, f.audited())
}

// Events go to another topic with the transaction that discards them, in their order.
func TestRepublish(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, id := range []string{"1", "2", "3"} {
		f.keep(id, "labour/notify", "k", map[bool]string{true: "dead", false: "blocked"}[id == "1"], "attempts", "oops")
	}
	f.sql(`update {schema}.claim_failed set headers = convert_to(replace(convert_from(headers, 'UTF8'), '"b"', '"' || $1 || '"'), 'UTF8')`, transport.KeyMetadata)
	s := deadletter.Selection{Consumer: "labour/notify", States: []string{"dead", "blocked"}, EventIDs: []string{"1", "2"}}
	republish := func(topic string) (deadletter.Result, error) {
		return deadletter.Republish(t.Context(), f.pool, f.schema, s, topic, me)
	}
	s.Topic = "topic"
	for _, topic := range []string{"", "topic"} {
		_, err := republish(topic)
		require.ErrorContains(t, err, "want one that differs from Selection.Topic")
	}
	_, err := republish(strings.Repeat("x", 1000))
	require.ErrorIs(t, err, outbox.ErrInvalidMessage)
	require.ErrorContains(t, err, `event "1" of consumer "labour/notify"`)
	f.sql(`alter table {schema}.outbox add constraint full_disk check (event_id <> '2')`)
	_, err = republish("other")
	require.ErrorContains(t, err, "full_disk")
	assert.Equal(t, map[string]string{"1": "dead", "2": "blocked", "3": "blocked"}, f.states())
	assert.Empty(t, f.audited(), "nothing was done")
	assert.Zero(t, f.count("outbox")+f.count("processed"))

	f.sql(`alter table {schema}.outbox drop constraint full_disk`)
	r, err := republish("other")
	require.NoError(t, err)
	assert.Equal(t, deadletter.Result{Done: 2}, r)
	var published []string
	rows, err := f.pool.Query(t.Context(), `select concat_ws(' ', event_id, topic, key, convert_from(payload, 'UTF8'), convert_from(headers, 'UTF8')::jsonb->>'a') from `+f.schema+`.outbox order by seq`)
	require.NoError(t, err)
	published, err = pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	assert.Equal(t, []string{"1 other 2 payload 1", "2 other 2 payload 1"}, published)
	assert.Equal(t, map[string]string{"3": "retrying"}, f.states(), "the next of the key has its turn")
	assert.Equal(t, []string{"redirect 2", "redirect 1"}, f.audited())
	assert.Equal(t, 2, f.count(`claim_audit where detail->>'to_topic' = 'other'`))
	for _, id := range []string{"1", "2"} {
		f.deliver(f.claim(claim.Config{}), id)
	}
	assert.Zero(t, f.count("effect"), "its consumer absorbs what is redelivered")
}

// Each transaction holds as many events as fit into memory.
func TestRepublishInSteps(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, number := f.record("labour/notify", "0")
	f.sql(`insert into {schema}.claim_failed (consumer, record, event_id, state, headers, payload)
		select $1::smallint, gen_random_uuid(), i, 'dead', convert_to('{"uuid": "' || i || '"}', 'UTF8'), '' from generate_series(1, 101) i`, number)
	r, err := deadletter.Republish(t.Context(), f.pool, f.schema, deadletter.Selection{}, "other", me)
	require.NoError(t, err)
	assert.Equal(t, deadletter.Result{Done: 101}, r)
	assert.Equal(t, 101, f.count("outbox"))
	var transactions int
	require.NoError(t, f.pool.QueryRow(t.Context(), `select count(distinct xmin::text) from `+f.schema+`.outbox`).Scan(&transactions))
	assert.Equal(t, 2, transactions)
	assert.Empty(t, f.states())
}
