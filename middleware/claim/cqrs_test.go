package claim_test

import (
	"context"
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
)

type (
	completed struct{ ID string }
	notified  struct{ ID string }
	unknown   struct{ ID string }
	notify    struct{ ID string }
)

var marshaler = cqrs.JSONMarshaler{NewUUID: outbox.NewID, GenerateName: cqrs.StructName}

// cqrsFixture is a router of Watermill's CQRS component, everything on one topic, and an event bus over the outbox.
type cqrsFixture struct {
	*fixture
	claim   *claim.Claim
	channel *gochannel.GoChannel
	router  *message.Router
	outbox  *cqrs.EventBus
}

func newCQRS(t *testing.T) *cqrsFixture {
	f := &cqrsFixture{fixture: newFixture(t)}
	var err error
	f.claim, err = claim.New(f.store, claim.Config{Service: "labour"})
	require.NoError(t, err)
	f.channel = gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 10}, watermill.NopLogger{})
	f.router, err = message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: f.schema})
	require.NoError(t, err)
	f.outbox, err = cqrs.NewEventBusWithConfig(events, cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return p.EventName, nil },
		Marshaler:            marshaler,
	})
	require.NoError(t, err)
	return f
}

// run runs the router while f delivers to it.
func (f *cqrsFixture) run(deliver func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(f.t, f.router.Run(ctx)) })
	<-f.router.Running()
	deliver()
	cancel()
	running.Wait()
}

// deliver sends what any bus sends, so many times, and returns its ID.
func (f *cqrsFixture) deliver(v any, times int) string {
	msg, err := marshaler.Marshal(v)
	require.NoError(f.t, err)
	for range times {
		require.NoError(f.t, f.channel.Publish("all", msg.Copy()))
	}
	return msg.UUID
}

func (f *cqrsFixture) subscriber() (message.Subscriber, error) { return f.channel, nil }

func (f *cqrsFixture) eventually(table string, n int) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return f.count(table) == n }, time.Minute, 5*time.Millisecond, table)
}

func TestEventsAndCommandsAreHandledUnderAClaim(t *testing.T) {
	t.Parallel()
	f := newCQRS(t)
	events, err := cqrs.NewEventProcessorWithConfig(f.router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) { return "all", nil },
		SubscriberConstructor: func(cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return f.subscriber()
		},
		OnHandle: f.claim.OnEvent, AckOnUnknownEvent: true, Marshaler: marshaler,
	})
	require.NoError(t, err)
	commands, err := cqrs.NewCommandProcessorWithConfig(f.router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) { return "all", nil },
		SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return f.subscriber()
		},
		OnHandle: f.claim.OnCommand, Marshaler: marshaler,
	})
	require.NoError(t, err)
	require.NoError(t, events.AddHandlers(cqrs.NewEventHandler("notifier", func(ctx context.Context, e *completed) error {
		if err := f.effect(ctx, e.ID); err != nil {
			return err
		}
		assert.NotNil(t, cqrs.OriginalMessageFromCtx(ctx))
		return f.outbox.Publish(ctx, notified{e.ID})
	})))
	require.NoError(t, commands.AddHandlers(cqrs.NewCommandHandler("commander", func(ctx context.Context, c *notify) error {
		return f.effect(ctx, c.ID)
	})))
	f.run(func() {
		f.deliver(unknown{"0"}, 3)
		f.deliver(completed{"1"}, 3)
		f.deliver(notify{"2"}, 3)
		f.eventually("effect", 2)
	})
	assert.Equal(t, map[string]int{"1": 1, "2": 1}, f.effects())
	assert.Equal(t, 2, f.count("processed"), "what nobody handles makes no claim")
	assert.Equal(t, 2, f.count("consumer"))
	assert.Equal(t, 1, f.count("outbox"), "published in the claim's transaction")
}

// Outputs of a handler that fails go with its transaction; the handlers before it in the group do not run again.
func TestEachHandlerOfAGroupRunsOnce(t *testing.T) {
	t.Parallel()
	f := newCQRS(t)
	group, err := cqrs.NewEventGroupProcessorWithConfig(f.router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return "all", nil },
		SubscriberConstructor: func(cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return f.subscriber()
		},
		OnHandle: f.claim.OnGroupEvent, AckOnUnknownEvent: true, Marshaler: marshaler,
	})
	require.NoError(t, err)
	var failures atomic.Int32
	failures.Store(2)
	require.NoError(t, group.AddHandlersGroup("family",
		cqrs.NewEventHandler("first", func(ctx context.Context, e *completed) error { return f.effect(ctx, "first "+e.ID) }),
		cqrs.NewEventHandler("second", func(ctx context.Context, e *completed) error {
			if err := f.outbox.Publish(ctx, notified{e.ID}); err != nil {
				return err
			}
			if failures.Add(-1) >= 0 {
				return errOops
			}
			return f.effect(ctx, "second "+e.ID)
		}),
		cqrs.NewGroupEventHandler(func(ctx context.Context, e *completed) error { return f.effect(ctx, "third "+e.ID) }),
		cqrs.NewGroupEventHandler(func(ctx context.Context, e *notify) error { return f.effect(ctx, "other "+e.ID) }),
	))
	f.run(func() {
		f.deliver(unknown{"0"}, 3)
		f.deliver(completed{"1"}, 3)
		f.deliver(notify{"2"}, 3)
		f.eventually("effect", 4)
	})
	assert.Equal(t, map[string]int{"first 1": 1, "second 1": 1, "third 1": 1, "other 2": 1}, f.effects())
	assert.Equal(t, 4, f.count("processed"))
	assert.Equal(t, 1, f.count("outbox"))
	var scopes []string
	require.NoError(t, f.pool.QueryRow(t.Context(), `select array_agg(name order by name) from `+f.schema+`.consumer`).Scan(&scopes))
	assert.Equal(t, []string{"labour/family.completed", "labour/family.notify", "labour/first", "labour/second"}, scopes)
}

// The handlers that failed, and they alone, have the event brought back.
func TestHandlersOfAGroupHaveTheirEventsBroughtBack(t *testing.T) {
	t.Parallel()
	f := newCQRS(t)
	quick := func(int) time.Duration { return time.Millisecond }
	var err error
	f.claim, err = claim.New(f.store, claim.Config{Service: "labour", Logger: silent, MaxAttempts: 3, Backoff: quick})
	require.NoError(t, err)
	group, err := cqrs.NewEventGroupProcessorWithConfig(f.router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return "all", nil },
		SubscriberConstructor: func(cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return f.claim.Subscriber("first", f.claim.Subscriber("second", f.claim.Subscriber("third", f.channel))), nil
		},
		OnHandle: f.claim.OnGroupEvent, Marshaler: marshaler,
	})
	require.NoError(t, err)
	var runs [3]atomic.Int32
	var mended atomic.Bool
	require.NoError(t, group.AddHandlersGroup("family",
		cqrs.NewEventHandler("first", func(ctx context.Context, e *completed) error {
			if runs[0].Add(1) < 3 {
				return errOops
			}
			return f.effect(ctx, "first "+e.ID)
		}),
		cqrs.NewEventHandler("second", func(ctx context.Context, e *completed) error {
			runs[1].Add(1)
			return f.effect(ctx, "second "+e.ID)
		}),
		cqrs.NewEventHandler("third", func(ctx context.Context, e *completed) error {
			runs[2].Add(1)
			if !mended.Load() {
				return errOops
			}
			return f.effect(ctx, "third "+e.ID)
		}),
	))
	f.run(func() {
		id := f.deliver(completed{"1"}, 1)
		f.eventually("effect", 2)
		f.eventually("claim_failed where state = 'dead'", 1)
		mended.Store(true)
		r, err := deadletter.Replay(t.Context(), f.pool, f.schema, deadletter.Selection{EventIDs: []string{id}}, me)
		require.NoError(t, err)
		assert.Equal(t, deadletter.Result{Done: 1}, r)
		f.eventually("effect", 3)
		f.eventually("claim_failed", 0)
	})
	assert.Equal(t, map[string]int{"first 1": 1, "second 1": 1, "third 1": 1}, f.effects())
	assert.Equal(t, []int32{3, 1, 4}, []int32{runs[0].Load(), runs[1].Load(), runs[2].Load()})
}

// The second of two handlers without a name would find every event processed.
func TestHandlersOfAGroupMustNotShareAScope(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, err := claim.New(f.store, claim.Config{Service: "labour"})
	require.NoError(t, err)
	params := func() cqrs.EventGroupProcessorOnHandleParams {
		return cqrs.EventGroupProcessorOnHandleParams{
			GroupName: "family", EventName: "completed", Event: &completed{"1"}, Message: message.NewMessage("1", nil),
			Handler: cqrs.NewGroupEventHandler(func(ctx context.Context, e *completed) error { return f.effect(ctx, e.ID) }),
		}
	}
	first := params()
	require.NoError(t, c.OnGroupEvent(first))
	require.NoError(t, c.OnGroupEvent(first))
	require.ErrorContains(t, c.OnGroupEvent(params()), `two handlers of group "family" for event "completed" have the scope "family.completed"`)
}

// Somebody else has the event in hand: it is nacked, and the handlers of others go on.
func TestContendedEventOfAGroup(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, err := claim.New(f.store, claim.Config{Service: "labour"})
	require.NoError(t, err)
	end := f.holding(claim.Key{Consumer: "labour/notifier", EventID: "1"})
	msg, d := deliver(t, "1")
	original := msg.Context()
	require.NoError(t, c.OnEvent(cqrs.EventProcessorOnHandleParams{
		Message: msg, Event: &completed{"1"}, EventName: "completed",
		Handler: cqrs.NewEventHandler("notifier", func(context.Context, *completed) error {
			t.Error("the handler must not run")
			return nil
		}),
	}))
	assert.True(t, nacked(msg))
	assert.Positive(t, d.retryAfter)
	assert.Equal(t, original, msg.Context())
	require.NoError(t, end(nil))
}
