package pubsub_test

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// TestReject: by pull and by push, ordered and not, with a dead-letter topic and without, a rejected message is a dead
// letter after one delivery, and its key goes on.
func TestReject(t *testing.T) {
	reader := connect(t, pubsub.Config{ClientOptions: emulator(t)}) // by pull
	eachMode(t, emulator, func(c *modeCase) {
		for _, ordered := range []bool{false, true} {
			topic := devtest.Topic(c.t)
			c.topic = topic
			var deads <-chan *message.Message
			readDeads := func() {
				_, deads = subscribe(c.t, reader, topic+".c.dead-letters", transport.SubscriberConfig{Consumer: transport.DeadLetterConsumer})
			}
			if !ordered { // nothing tells when the dead letter is sent
				readDeads()
			}
			var got received
			router := c.route(transport.SubscriberConfig{Consumer: "c", Ordered: ordered}, func(msg *message.Message) error {
				got.add(msg)
				if string(msg.Payload) != "first" {
					return nil
				}
				cause := errors.New("not JSON")
				transport.DeliveryFrom(msg.Context()).Reject(cause)
				return cause
			})
			first := newMessage("k", "first")
			c.publish(first)
			require.Len(c.t, got.await(c.t, 1), 1)
			c.publish(newMessage("k", "second"))
			require.Equal(c.t, "second", string(got.await(c.t, 2)[1].Payload))

			if ordered {
				readDeads()
			}
			msg := next(c.t, deads)
			require.Equal(c.t, first.UUID, msg.UUID)
			require.Equal(c.t, "first", string(msg.Payload))
			require.Equal(c.t, "rejected", msg.Metadata[transport.DeadReasonMetadata])
			require.Equal(c.t, "not JSON", msg.Metadata[transport.DeadErrorMetadata])
			require.Equal(c.t, topic+".c", msg.Metadata[pubsub.DeadSubscriptionMetadata])
			msg.Ack()
			require.NoError(c.t, router.Close())
			require.Len(c.t, got.all(), 2)
		}
	})
}
