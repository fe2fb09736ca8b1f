package transporttest

import (
	"errors"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

// reject: a rejected message is not delivered again. It is kept with the cause for whoever reads dead letters, as it came,
// and the next one of its key goes on.
func reject(e *env) {
	consumers := []string{"unordered"}
	if e.transport.Features().Ordered && !e.config.unordered() {
		consumers = append(consumers, "ordered")
	}
	for _, consumer := range consumers {
		messages := e.subscribe(transport.SubscriberConfig{Consumer: consumer, Ordered: consumer == "ordered"})
		dead := transport.DeadLetterTopic(e.topic, consumer+"-"+e.id)
		s, err := e.transport.Subscriber(transport.SubscriberConfig{Consumer: transport.DeadLetterConsumer})
		require.NoError(e, err)
		e.Cleanup(func() { require.NoError(e, s.Close()) })
		deads, err := s.Subscribe(e.Context(), dead)
		require.NoError(e, err)
		rejected, second := newMessage("k", "rejected"), newMessage("k", "next")
		rejected.Metadata["name"] = "value"
		e.publish(rejected)
		e.publish(second)
		handled := map[string]bool{} // by ID: either may come first, and a message may come twice
		for !handled[rejected.UUID] || !handled[second.UUID] {
			msg := e.next(messages)
			handled[msg.UUID] = true
			if msg.UUID == rejected.UUID {
				delivery := transport.DeliveryFrom(msg.Context())
				require.NoError(e, delivery.Rejected())
				delivery.Reject(errors.New("not JSON"))
				require.EqualError(e, delivery.Rejected(), "not JSON")
				require.True(e, msg.Nack())
			}
			msg.Ack() // which does nothing after a nack
		}
		msg := e.next(deads)
		require.Equal(e, rejected.UUID, msg.UUID)
		require.Equal(e, rejected.Payload, msg.Payload)
		require.Equal(e, "k", transport.Key(msg))
		require.Equal(e, "value", msg.Metadata["name"])
		require.Equal(e, transport.DeadRejected, msg.Metadata[transport.DeadReasonMetadata])
		require.Equal(e, "not JSON", msg.Metadata[transport.DeadErrorMetadata])
		msg.Ack()

		// An ack stands, whatever was asked before.
		third := newMessage("k", "acked")
		e.publish(third)
		msg = e.next(messages)
		require.Equal(e, third.UUID, msg.UUID, "the rejected one is not delivered again")
		transport.DeliveryFrom(msg.Context()).Reject(errors.New("never mind"))
		msg.Ack()
		e.publish(newMessage("k", "last"))
		msg = e.next(messages)
		require.Equal(e, "last", string(msg.Payload))
		msg.Ack()
	}
}
