package redisclaim_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
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
	"github.com/millrace-go/millrace/middleware/claim/claimtest"
	"github.com/millrace-go/millrace/middleware/claim/redisclaim"
)

func claimOf(t *testing.T, f claimtest.Fixture, consumer string) *claim.Claim {
	t.Helper()
	c, err := claim.New(f.Store, claim.Config{
		Service:  "labour",
		Consumer: func(string) string { return consumer },
		Logger:   slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	return c
}

func handlerOf(f claimtest.Fixture) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) { return nil, f.Effect(msg.Context(), msg.UUID) }
}

func nacked(msg *message.Message) bool {
	select {
	case <-msg.Nacked():
		return true
	default:
		return false
	}
}

func TestClaimInsideClaim(t *testing.T) {
	t.Parallel()
	for name, fixture := range map[string]func(*testing.T) claimtest.Fixture{
		"alone":                func(t *testing.T) claimtest.Fixture { return alone(t, devtest.Redis(t), redisclaim.Config{}) },
		"in front of a record": func(t *testing.T) claimtest.Fixture { return inFront(t, devtest.Redis(t), redisclaim.Config{}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fixture(t)
			outer := claimOf(t, f, "notify")
			for _, inner := range []*claim.Claim{outer, claimOf(t, f, "notify")} {
				id := strings.ToLower(devtest.Topic(t))
				msg := message.NewMessage(id, nil)
				_, err := outer.Middleware(inner.Middleware(handlerOf(f)))(msg)
				require.ErrorIs(t, err, claim.ErrNestedClaim)
				assert.False(t, nacked(msg), "that is the router's")
				assert.NotContains(t, f.Effects(), id)
				_, err = outer.Middleware(handlerOf(f))(message.NewMessage(id, nil))
				require.NoError(t, err)
				assert.Equal(t, 1, f.Effects()[id], "without the inner claim it is handled")
			}
		})
	}
}

// Redis alone lets a message be claimed for two consumers, one inside the other.
func TestClaimInsideClaimOfAnotherConsumer(t *testing.T) {
	t.Parallel()
	f := alone(t, devtest.Redis(t), redisclaim.Config{})
	outer, inner := claimOf(t, f, "notify"), claimOf(t, f, "archive")
	h := outer.Middleware(inner.Middleware(handlerOf(f)))

	// While another one has the inner claim the outer one must not complete: nobody would run the handler if that one fails.
	_, end := holding(t, f.Store, claim.Key{Consumer: "labour/archive", EventID: "1"})
	_, err := h(message.NewMessage("1", nil))
	require.ErrorIs(t, err, claim.ErrContended)
	errOops := errors.New("oops")
	require.ErrorIs(t, end(errOops), errOops)
	for range 2 {
		msg := message.NewMessage("1", nil)
		_, err = h(msg)
		require.NoError(t, err)
		assert.False(t, nacked(msg))
	}
	assert.Equal(t, map[string]int{"1": 1}, f.Effects())
}

// A handler publishes to a channel that hands its context on: the same event to the same consumer, which is contended, and a
// follow-up event, which is handled at once.
func TestClaimInsideClaimIsNoOtherDelivery(t *testing.T) {
	t.Parallel()
	f := alone(t, devtest.Redis(t), redisclaim.Config{})
	channel := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 10, PreserveContext: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	contended, followed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			again := msg.Metadata.Get("again") != ""
			out, err := h(msg)
			require.NotErrorIs(t, err, claim.ErrNestedClaim)
			if again {
				once.Do(func() { require.ErrorIs(t, err, claim.ErrContended); close(contended) })
			}
			return out, err
		}
	}, claimOf(t, f, "notify").Middleware)
	const topic = "labour.completed"
	router.AddConsumerHandler("notify", topic, channel, func(msg *message.Message) error {
		if msg.UUID == "follow-up" {
			defer close(followed)
			return f.Effect(msg.Context(), msg.UUID)
		}
		again := message.NewMessageWithContext(msg.Context(), msg.UUID, nil)
		again.Metadata.Set("again", "yes")
		if err := channel.Publish(topic, again, message.NewMessageWithContext(msg.Context(), "follow-up", nil)); err != nil {
			return err
		}
		<-contended
		<-followed
		return f.Effect(msg.Context(), msg.UUID)
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(t, router.Run(ctx)) })
	<-router.Running()
	require.NoError(t, channel.Publish(topic, message.NewMessage("1", nil)))
	require.Eventually(t, func() bool { return len(f.Effects()) == 2 }, time.Minute, time.Millisecond)
	cancel()
	running.Wait()
	assert.Equal(t, map[string]int{"1": 1, "follow-up": 1}, f.Effects())
}
