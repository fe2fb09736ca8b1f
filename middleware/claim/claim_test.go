package claim_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

func TestDuplicateIsAckedWithoutItsHandler(t *testing.T) {
	perMode(t, testDuplicateIsAckedWithoutItsHandler)
}

func testDuplicateIsAckedWithoutItsHandler(t *testing.T, f *fixture) {
	h := f.middleware(claim.Config{})(f.handler)
	for range 3 {
		msg, _ := deliver(t, "1")
		out, err := h(msg)
		require.NoError(t, err)
		assert.Empty(t, out)
		assert.False(t, nacked(msg))
	}
	assert.Equal(t, map[string]int{"1": 1}, f.effects())
}

func TestContendedMessageIsNackedWithADelay(t *testing.T) {
	perMode(t, testContendedMessageIsNackedWithADelay)
}

func testContendedMessageIsNackedWithADelay(t *testing.T, f *fixture) {
	end := f.holding(claim.Key{Consumer: "labour/notify", EventID: "1"})
	msg, d := deliver(t, "1")
	out, err := f.middleware(claim.Config{})(f.handler)(msg)
	require.NoError(t, err, "contention is no error: it must not reach a poison queue")
	assert.Empty(t, out)
	assert.True(t, nacked(msg))
	assert.Positive(t, d.retryAfter)
	require.NoError(t, end(nil))
}

func TestFailedHandlerLeavesNothing(t *testing.T) { perMode(t, testFailedHandlerLeavesNothing) }

func testFailedHandlerLeavesNothing(t *testing.T, f *fixture) {
	fail := func(msg *message.Message) ([]*message.Message, error) {
		require.NoError(t, f.effect(msg.Context(), msg.UUID))
		return []*message.Message{message.NewMessage(outbox.NewID(), nil)}, errOops
	}
	panics := func(msg *message.Message) ([]*message.Message, error) {
		require.NoError(t, f.effect(msg.Context(), msg.UUID))
		panic("oops")
	}
	tooLong := func(msg *message.Message) ([]*message.Message, error) {
		if err := f.effect(msg.Context(), msg.UUID); err != nil { // on a busy machine the time is over already
			return nil, err
		}
		tx, _ := pgtx.From(msg.Context())
		_, err := tx.Exec(msg.Context(), `select pg_sleep(60)`)
		return nil, err
	}
	mw := f.middleware(claim.Config{})
	msg, _ := deliver(t, "1")
	_, err := mw(fail)(msg)
	require.ErrorIs(t, err, errOops)
	require.NoError(t, msg.Context().Err(), "middleware outside of the claim meets the message's own context")
	msg, _ = deliver(t, "1")
	_, err = mw(panics)(msg)
	var panicked *claim.PanicError
	require.ErrorAs(t, err, &panicked, "the router need not know how to survive it")
	assert.Equal(t, "oops", panicked.Value)
	assert.Contains(t, string(panicked.Stack), "claim_test.go")
	msg, _ = deliver(t, "1")
	_, err = mw(func(msg *message.Message) ([]*message.Message, error) {
		require.NoError(t, f.effect(msg.Context(), msg.UUID))
		runtime.Goexit() // as a test's FailNow does
		return nil, nil
	})(msg)
	require.ErrorContains(t, err, "runtime.Goexit", "it is an attempt like another")
	msg, _ = deliver(t, "1")
	_, err = f.middleware(claim.Config{HandlerTimeout: time.Second})(tooLong)(msg)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	for _, table := range []string{"effect", "processed", "outbox"} {
		assert.Zero(t, f.count(table), table)
	}
	require.Eventually(t, func() bool { // the server may not have noticed yet that the last connection is gone
		msg, _ = deliver(t, "1")
		_, err = mw(f.handler)(msg)
		return err == nil && !nacked(msg)
	}, time.Minute, 10*time.Millisecond)
	assert.Equal(t, map[string]int{"1": 1}, f.effects())
}

// What a handler returns is its own error, whatever it wraps: the event was not processed.
func TestHandlersErrorIsNeverTakenForTheStores(t *testing.T) {
	perMode(t, testHandlersErrorIsNeverTakenForTheStores)
}

func testHandlersErrorIsNeverTakenForTheStores(t *testing.T, f *fixture) {
	for _, own := range []error{claim.ErrCompleted, claim.ErrContended} {
		msg, _ := deliver(t, "1")
		_, err := f.middleware(claim.Config{})(func(*message.Message) ([]*message.Message, error) {
			return nil, fmt.Errorf("another claim: %w", own)
		})(msg)
		require.ErrorIs(t, err, own)
		assert.False(t, nacked(msg), "that is the router's")
	}
	assert.Zero(t, f.count("processed"))
}

// The router cancels the contexts of running handlers when it closes.
func TestRunningHandlerOutlivesItsMessagesContext(t *testing.T) {
	perMode(t, testRunningHandlerOutlivesItsMessagesContext)
}

func testRunningHandlerOutlivesItsMessagesContext(t *testing.T, f *fixture) {
	ctx, cancel := context.WithCancel(t.Context())
	msg := message.NewMessageWithContext(ctx, "1", nil)
	_, err := f.middleware(claim.Config{})(func(msg *message.Message) ([]*message.Message, error) {
		cancel()
		require.NoError(t, msg.Context().Err())
		return f.handler(msg)
	})(msg)
	require.NoError(t, err)
	assert.Equal(t, map[string]int{"1": 1}, f.effects())
}

func TestMessageOfAnotherProducer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	msg, _ := deliver(t, "1")
	_, err := f.middleware(claim.Config{Consumer: func(handler string) string { return handler }})(f.handler)(msg)
	require.ErrorContains(t, err, `no consumer for handler ""`)

	byHeader := claim.Config{EventID: func(m *message.Message) (string, error) { return m.Metadata.Get("ce-id"), nil }}
	for range 2 { // the broker's redelivery under another UUID
		msg, _ = deliver(t, outbox.NewID())
		msg.Metadata.Set("ce-id", "A-1")
		_, err = f.middleware(byHeader)(f.handler)(msg)
		require.NoError(t, err)
	}
	assert.Len(t, f.effects(), 1)
}

// The trap of Watermill's router: it publishes what a handler returned after all middleware, so a failing publish after
// a committed claim would lose the outputs. Here the router's publisher always fails, and nothing is lost.
func TestOutputsAreStagedInTheClaimsTransaction(t *testing.T) {
	perMode(t, testOutputsAreStagedInTheClaimsTransaction)
}

func testOutputsAreStagedInTheClaimsTransaction(t *testing.T, f *fixture) {
	channel := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 10}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(f.middleware(claim.Config{Consumer: func(handler string) string { return handler }}))
	router.AddHandler("notify", "labour.completed", channel, "notification.sent", broken{}, func(msg *message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage(outbox.NewID(), []byte("sent"))}, f.effect(msg.Context(), msg.UUID)
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(t, router.Run(ctx)) })
	<-router.Running()
	msg := message.NewMessage("1", nil)
	for range 5 {
		require.NoError(t, channel.Publish("labour.completed", msg.Copy()))
	}
	require.Eventually(t, func() bool { return f.count("outbox") > 0 }, time.Minute, 5*time.Millisecond)
	cancel()
	running.Wait()
	assert.Equal(t, map[string]int{"1": 1}, f.effects())
	assert.Equal(t, 1, f.count("outbox"))
	var topic, payload string
	require.NoError(t, f.pool.QueryRow(t.Context(), `select topic, convert_from(payload, 'UTF8') from `+f.schema+`.outbox`).Scan(&topic, &payload))
	assert.Equal(t, "notification.sent", topic)
	assert.Equal(t, "sent", payload)
}

type broken struct{}

func (broken) Publish(string, ...*message.Message) error { return errOops }
func (broken) Close() error                              { return nil }

func TestOutputsNeedATopic(t *testing.T) { perMode(t, testOutputsNeedATopic) }

func testOutputsNeedATopic(t *testing.T, f *fixture) {
	msg, _ := deliver(t, "1")
	_, err := f.middleware(claim.Config{})(func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage(outbox.NewID(), nil)}, nil
	})(msg)
	require.ErrorContains(t, err, "no publish topic")
	assert.Zero(t, f.count("processed"))
}

// race delivers every event once or twice, at random and from eight workers at once, through the guard, again and again
// until it is acked.
func (f *fixture) race(events int, guard message.HandlerMiddleware) {
	ids := make([]string, 0, 2*events)
	for i := range events {
		ids = append(ids, fmt.Sprint("event-", i))
		if i%2 == 0 {
			ids = append(ids, fmt.Sprint("event-", i))
		}
	}
	deliveries := make(chan string, len(ids))
	for i := 0; i < len(ids); i += 40 { // duplicates stay near each other, as a retrying relay sends them
		part := ids[i:min(i+40, len(ids))]
		rand.Shuffle(len(part), func(a, b int) { part[a], part[b] = part[b], part[a] })
		for _, id := range part {
			deliveries <- id
		}
	}
	close(deliveries)
	h := guard(f.handler)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for id := range deliveries {
				for {
					msg := message.NewMessage(id, nil)
					_, err := h(msg)
					if !assert.NoError(f.t, err) || !nacked(msg) {
						break
					}
				}
			}
		})
	}
	workers.Wait()
}

func doubled(effects map[string]int) (n int) {
	for _, times := range effects {
		if times > 1 {
			n++
		}
	}
	return n
}

func TestRaceOfDuplicates(t *testing.T) { perMode(t, testRaceOfDuplicates) }

func testRaceOfDuplicates(t *testing.T, f *fixture) {
	events := devtest.Storm(2000, 500)
	f.race(events, f.middleware(claim.Config{}))
	effects := f.effects()
	assert.Len(t, effects, events)
	assert.Zero(t, doubled(effects))
}

// The control of the test above: looking first and acting then, as in the article's example of a race, doubles some.
func TestRaceOfDuplicatesWithCheckThenAct(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.race(2000, func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			tx, err := f.pool.Begin(t.Context())
			if err != nil {
				return nil, err
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			var seen bool
			if err := tx.QueryRow(t.Context(), `select exists (select from `+f.schema+`.effect where event_id = $1)`, msg.UUID).Scan(&seen); err != nil || seen {
				return nil, err
			}
			msg.SetContext(pgtx.With(t.Context(), tx))
			if _, err := h(msg); err != nil {
				return nil, err
			}
			return nil, tx.Commit(t.Context())
		}
	})
	assert.Positive(t, doubled(f.effects()), "this race finds doubles where there is no claim")
}
