package claim_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

// The middleware was added to the router, and to a handler once more: the inner claim found the event claimed, took it for
// a duplicate, and 20 of 20 events were recorded and acked without their handler.
func TestClaimInsideClaim(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	m := f.broker()
	c, err := claim.New(f.store, claim.Config{Service: "labour", MaxAttempts: 2, Backoff: func(int) time.Duration { return time.Millisecond }, Logger: silent})
	require.NoError(t, err)
	claim.PollEvery(c, 50*time.Millisecond)
	sub, err := m.Connect().Subscriber(transport.SubscriberConfig{Consumer: "notify", Ordered: true})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(c.Middleware)
	router.AddConsumerHandler("notify", eventTopic, c.Subscriber("notify", sub), f.take).AddMiddleware(c.Middleware)
	stop := f.run(router)
	const events = 20
	for range events {
		f.publish(m, keyed(outbox.NewID(), "k"))
	}
	f.eventually(func() bool { return f.count("claim_failed where state = 'dead'") == events }, "all of them are dead letters")
	stop()
	assert.Empty(t, f.effects())
	for _, row := range f.failed() {
		assert.Equal(t, "attempts", row.Reason)
		assert.Equal(t, 2, row.Attempts)
		assert.Contains(t, row.Error, "remove one of the two", "the remedy")
	}

	f.serve(m, claim.Config{}, f.take)
	replayed, err := deadletter.Replay(t.Context(), f.pool, f.schema, deadletter.Selection{}, deadletter.By{Actor: "test"})
	require.NoError(t, err)
	assert.Equal(t, events, replayed.Done)
	f.eventually(func() bool { return len(f.effects()) == events }, "without the inner claim each of them is handled")
}

func TestTwoClaimsFailWithEveryStoreAndMode(t *testing.T) {
	t.Parallel()
	upper := func(msg *message.Message) (string, error) { return strings.ToUpper(msg.UUID), nil }
	postgres := func(_ *testing.T, f *fixture) claim.Store { return f.store }
	other := func(_ *testing.T, f *fixture) claim.Store {
		return claim.NewPostgresStore(f.pool, claim.Schema(f.schema))
	}
	sql := func(t *testing.T, f *fixture) claim.Store {
		return claim.NewSQLStore(openSQL(t, f), claim.Schema(f.schema))
	}
	for name, mode := range map[string]struct {
		outer, inner func(*testing.T, *fixture) claim.Store // no inner one: the same Claim twice
		cfg          claim.Config
		ofInner      claim.Config
	}{
		"one Claim":                {outer: postgres},
		"two Claims of one store":  {outer: postgres, inner: postgres},
		"two stores of one table":  {outer: postgres, inner: other},
		"IDs that differ in case":  {outer: postgres, inner: postgres, ofInner: claim.Config{EventID: upper}},
		"groups":                   {outer: postgres, cfg: claim.Config{Group: 2}},
		"a group in a single one":  {outer: postgres, inner: postgres, ofInner: claim.Config{Group: 2}},
		"deferred acks":            {outer: postgres, cfg: claim.Config{Deferred: true}},
		"lazy":                     {outer: postgres, cfg: claim.Config{Lazy: true}},
		"a lazy one in a lazy one": {outer: postgres, inner: postgres, cfg: claim.Config{Lazy: true}, ofInner: claim.Config{Lazy: true}},
		"database/sql":             {outer: sql},
		"pgx in database/sql":      {outer: sql, inner: postgres},
		"database/sql in pgx":      {outer: postgres, inner: sql},
		"behind another store":     {outer: func(_ *testing.T, f *fixture) claim.Store { return front{f.store} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			outer := f.claimIn(mode.outer(t, f), mode.cfg)
			inner := outer
			if mode.inner != nil {
				inner = f.claimIn(mode.inner(t, f), mode.ofInner)
			}
			ran := 0
			h := inner.Middleware(func(*message.Message) ([]*message.Message, error) { ran++; return nil, nil })
			id := outbox.NewID()
			for range 2 {
				msg, _ := deliver(t, id)
				_, err := outer.Middleware(h)(msg)
				require.ErrorIs(t, err, claim.ErrNestedClaim)
				require.ErrorContains(t, err, id)
				assert.False(t, nacked(msg), "that is the router's")
			}
			assert.Zero(t, ran)
			assert.Zero(t, f.count("processed"))
			msg, _ := deliver(t, id)
			_, err := outer.Middleware(func(*message.Message) ([]*message.Message, error) { ran++; return nil, nil })(msg)
			require.NoError(t, err)
			assert.Equal(t, 1, ran, "without the inner claim it is handled")
		})
	}
}

func (f *fixture) claimIn(store claim.Store, cfg claim.Config) *claim.Claim {
	cfg.Consumer = func(string) string { return "notify" }
	if cfg.Logger == nil {
		cfg.Logger = silent
	}
	cfg.Service = "labour"
	c, err := claim.New(store, cfg)
	require.NoError(f.t, err)
	return c
}

// What is between the two claims may swallow the error, as a poison queue does.
func TestClaimInsideClaimWhoseErrorIsSwallowed(t *testing.T) {
	perMode(t, testClaimInsideClaimWhoseErrorIsSwallowed)
}

func testClaimInsideClaimWhoseErrorIsSwallowed(t *testing.T, f *fixture) {
	c := f.claimIn(f.store, claim.Config{})
	inner := c.Middleware(f.handler)
	msg, _ := deliver(t, "1")
	_, err := c.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		_, err := inner(msg)
		require.ErrorIs(t, err, claim.ErrNestedClaim)
		return nil, nil
	})(msg)
	require.ErrorIs(t, err, claim.ErrNestedClaim)
	assert.Zero(t, f.count("processed"))
}

func TestClaimInsideClaimIsLoggedOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var log bytes.Buffer
	c := f.claimIn(f.store, claim.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	h := c.Middleware(c.Middleware(f.handler))
	for i := range 3 {
		msg, _ := deliver(t, fmt.Sprint(i))
		_, err := h(msg)
		require.ErrorIs(t, err, claim.ErrNestedClaim)
	}
	assert.Equal(t, 1, strings.Count(log.String(), "level=ERROR"), log.String())
	assert.Contains(t, log.String(), "consumer=labour/notify")
	assert.Contains(t, log.String(), "remove one of the two")
}

// What is between the two claims copies the message, or gives it another context: the inner claim did not know of the outer
// one, found the event contended, nacked the copy, of which nobody heard, and the event was acked without its handler.
func TestClaimInsideClaimOfAChangedMessage(t *testing.T) {
	t.Parallel()
	for between, change := range map[string]func(message.HandlerFunc) message.HandlerFunc{
		"a copy": func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) { return h(msg.Copy()) }
		},
		"a copy with its context, whose error is swallowed": func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				_, err := h(msg.CopyWithContext())
				assert.ErrorIs(t, err, claim.ErrNestedClaim)
				return nil, nil
			}
		},
		"another context, whose error is swallowed": func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				msg.SetContext(context.Background())
				_, err := h(msg)
				assert.ErrorIs(t, err, claim.ErrNestedClaim)
				return nil, nil
			}
		},
	} {
		for mode, cfg := range map[string]claim.Config{"singly": {}, "groups": {Group: 2}, "deferred acks": {Deferred: true}} {
			t.Run(between+", "+mode, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				m := f.broker()
				cfg.MaxAttempts = 1
				c := f.claimIn(f.store, cfg)
				sub, err := m.Connect().Subscriber(transport.SubscriberConfig{Consumer: "notify", Ordered: true})
				require.NoError(t, err)
				router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
				require.NoError(t, err)
				router.AddMiddleware(c.Middleware, change)
				router.AddConsumerHandler("notify", eventTopic, c.Subscriber("notify", sub), f.take).AddMiddleware(c.Middleware)
				stop := f.run(router)
				f.publish(m, keyed(outbox.NewID(), ""))
				f.eventually(func() bool { return f.count("processed") == 1 }, "it is settled")
				stop()
				assert.Empty(t, f.effects())
				failed := f.failed()
				require.Len(t, failed, 1)
				assert.Equal(t, "dead", failed[0].State)
				assert.Contains(t, failed[0].Error, "remove one of the two")
			})
		}
	}
}

// The hooks of the CQRS component, on a router whose middleware claims too.
func TestClaimInsideClaimOfTheCQRSHooks(t *testing.T) {
	t.Parallel()
	f := newCQRS(t)
	c, err := claim.New(f.store, claim.Config{Service: "labour", MaxAttempts: 1, Logger: silent, Consumer: func(handler string) string {
		router, _, _ := strings.Cut(handler, ".") // a handler of a group has the scope of the whole group
		return router
	}})
	require.NoError(t, err)
	f.router.AddMiddleware(c.Middleware)
	events, err := cqrs.NewEventProcessorWithConfig(f.router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) { return "events", nil },
		SubscriberConstructor: func(cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return f.subscriber()
		},
		OnHandle: c.OnEvent, Marshaler: marshaler,
	})
	require.NoError(t, err)
	commands, err := cqrs.NewCommandProcessorWithConfig(f.router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) { return "commands", nil },
		SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return f.subscriber()
		},
		OnHandle: c.OnCommand, Marshaler: marshaler, AckCommandHandlingErrors: true,
	})
	require.NoError(t, err)
	groups, err := cqrs.NewEventGroupProcessorWithConfig(f.router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return "groups", nil },
		SubscriberConstructor: func(cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return f.subscriber()
		},
		OnHandle: c.OnGroupEvent, Marshaler: marshaler,
	})
	require.NoError(t, err)
	var ran atomic.Int64
	require.NoError(t, events.AddHandlers(cqrs.NewEventHandler("eventer", func(context.Context, *completed) error { ran.Add(1); return nil })))
	require.NoError(t, commands.AddHandlers(cqrs.NewCommandHandler("commander", func(context.Context, *notify) error { ran.Add(1); return nil })))
	require.NoError(t, groups.AddHandlersGroup("grouper", cqrs.NewGroupEventHandler(func(context.Context, *notified) error { ran.Add(1); return nil })))
	stop := f.fixture.run(f.router)
	for topic, v := range map[string]any{"events": completed{"1"}, "commands": notify{"2"}, "groups": notified{"3"}} {
		msg, err := marshaler.Marshal(v)
		require.NoError(t, err)
		require.NoError(t, f.channel.Publish(topic, msg))
	}
	f.fixture.eventually(func() bool { return f.count("claim_failed where state = 'dead'") == 3 }, "dead letters")
	stop()
	assert.Zero(t, ran.Load())
	for _, row := range f.failed() {
		assert.Contains(t, row.Error, claim.ErrNestedClaim.Error())
	}
}

// A handler publishes to a channel that hands contexts on, or not: what is delivered there is another delivery, no nesting.
func TestClaimInsideClaimIsNoOtherDelivery(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	channel := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 10}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	c := f.claimIn(f.store, claim.Config{})
	again, contended := outbox.NewID(), make(chan struct{})
	var once sync.Once
	router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			redelivered := msg.Metadata.Get("redelivered") != ""
			out, err := h(msg)
			assert.NoError(t, err)
			if redelivered {
				once.Do(func() { assert.True(t, nacked(msg), "contended"); close(contended) })
			}
			return out, err
		}
	}, c.Middleware)
	router.AddConsumerHandler("notify", eventTopic, channel, func(msg *message.Message) error {
		if msg.UUID == again {
			redelivery := message.NewMessageWithContext(msg.Context(), again, nil)
			redelivery.Metadata.Set("redelivered", "yes")
			follow := message.NewMessageWithContext(msg.Context(), "follow-up", nil)
			if err := channel.Publish(eventTopic, redelivery, follow); err != nil {
				return err
			}
			<-contended
		}
		return f.take(msg)
	})
	stop := f.run(router)
	require.NoError(t, channel.Publish(eventTopic, message.NewMessage(again, nil)))
	f.eventually(func() bool { return len(f.effects()) == 2 }, "both take effect")
	stop()
	assert.Equal(t, map[string]int{again: 1, "follow-up": 1}, f.effects())
	assert.Empty(t, f.failed())
}

// Two consumers around one message are two claims, which the stores in PostgreSQL refuse: each begins a transaction.
func TestClaimInsideClaimOfAnotherConsumer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	outer := f.claimIn(f.store, claim.Config{})
	inner, err := claim.New(f.store, claim.Config{Service: "labour", Consumer: func(string) string { return "archive" }, Logger: silent})
	require.NoError(t, err)
	msg, _ := deliver(t, "1")
	_, err = outer.Middleware(inner.Middleware(f.handler))(msg)
	require.ErrorContains(t, err, "carries a transaction already")
	require.NotErrorIs(t, err, claim.ErrNestedClaim)
	assert.Zero(t, f.count("processed"))
}
