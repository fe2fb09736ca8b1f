package claim_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// Outputs that the outbox refuses fail the handler, like an error of its own: neither they nor the event are lost.
func TestRefusedOutputs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	channel := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	c, err := claim.New(f.store, claim.Config{Service: "labour", MaxAttempts: 3, Logger: silent})
	require.NoError(t, err)
	router.AddMiddleware(c.Middleware)
	router.AddHandler("notify", eventTopic, channel, "follow-ups", broken{}, func(msg *message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage(outbox.NewID(), nil), message.NewMessage("no text: \xff", nil)}, f.take(msg)
	})
	defer f.run(router)()
	require.NoError(t, channel.Publish(eventTopic, message.NewMessage("1", []byte("payload"))))
	f.eventually(func() bool { return f.count("claim_failed where state = 'dead'") == 1 }, "a dead letter")
	assert.Equal(t, 3, f.failed()[0].Attempts)
	assert.Contains(t, f.failed()[0].Error, "invalid message")
	assert.Equal(t, "payload", string(f.failed()[0].Payload))
	assert.Empty(t, f.effects())
	assert.Zero(t, f.count("outbox"))
}

// run runs the router until stop is called.
func (f *fixture) run(router *message.Router) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(f.t, router.Run(ctx)) })
	<-router.Running()
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	f.t.Cleanup(stop)
	return stop
}

// Watermill closes the publisher of a handler that stops, also where others share it.
func TestSharedPublisherSurvivesAStoppingHandler(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: f.schema})
	require.NoError(t, err)
	channel := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	c, err := claim.New(f.store, claim.Config{Service: "labour", Logger: silent})
	require.NoError(t, err)
	router.AddMiddleware(c.Middleware)
	follow := func(msg *message.Message) ([]*message.Message, error) {
		if err := f.take(msg); err != nil {
			return nil, err
		}
		direct := message.NewMessageWithContext(msg.Context(), outbox.NewID(), nil)
		return []*message.Message{message.NewMessage(outbox.NewID(), nil)}, events.Publish("direct", direct)
	}
	stopping := router.AddHandler("stopping", "one", channel, "follow-ups", events, follow)
	router.AddHandler("going-on", "two", channel, "follow-ups", events, follow)
	defer f.run(router)()
	stopping.Stop()
	<-stopping.Stopped()
	require.NoError(t, channel.Publish("two", message.NewMessage("1", nil)))
	f.eventually(func() bool { return f.effects()["1"] == 1 }, "the other handler goes on")
	assert.Equal(t, 2, f.count("outbox"))
}

// What a handler publishes names its event as the cause, whatever was copied, alone and in a group: "millrace explain" finds
// it by that.
func TestOutputsNameTheirCause(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]claim.Config{"single": {}, "group": {Group: 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: f.schema})
			require.NoError(t, err)
			handler := f.middleware(cfg)(func(msg *message.Message) ([]*message.Message, error) {
				out := message.NewMessageWithContext(msg.Context(), "of "+msg.UUID, nil)
				out.Metadata.Set(outbox.CauseMetadata, "another one")
				return nil, events.Publish("follow-ups", out)
			})
			var handling sync.WaitGroup
			for _, id := range []string{"1", "2"} {
				handling.Go(func() {
					msg, _ := deliver(t, id)
					_, err := handler(msg)
					assert.NoError(t, err)
				})
			}
			handling.Wait()
			for _, id := range []string{"1", "2"} {
				found, err := outboxadmin.FindOutputs(t.Context(), f.pool, f.schema, id, time.Now(), time.Minute, 10)
				require.NoError(t, err)
				require.Len(t, found, 1)
				assert.Equal(t, "of "+id, found[0].EventID)
			}
		})
	}
}
