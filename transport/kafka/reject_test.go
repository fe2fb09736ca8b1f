package kafka_test

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// TestReject: a rejected message is a dead letter after one delivery, in the configured topic or the default one, and stops
// neither its key nor, in transactional delivery, its partition.
func TestReject(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]kafka.Config{
		"at least once": {}, "transactional": {Delivery: kafka.Transactional},
		"at least once, with a topic": {}, "transactional, with a topic": {Delivery: kafka.Transactional},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := devtest.Topic(t)
			dead := topic + ".c.dead-letters"
			if len(name) > len("transactional") {
				dead = devtest.Topic(t)
				config.Consumer.DeadLetter = kafka.DeadLetter{Topic: dead, MaxAttempts: 5}
				config.Consumers = map[string]kafka.ConsumerConfig{"dead-letters": {}}
			}
			config.Brokers = brokers(t)
			tr := connect(t, config)
			_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c", Ordered: true, Concurrency: 1})
			first, second := newMessage("k", "first"), newMessage("k", "second")
			publisher, err := tr.PlainPublisher()
			require.NoError(t, err)
			require.NoError(t, publisher.Publish(topic, first, second))

			msg := next(t, messages)
			require.Equal(t, first.UUID, msg.UUID)
			if unit := transport.UnitFrom(msg.Context()); unit != nil {
				require.NoError(t, unit.Stage(topic, newMessage("k", "of the rejected one")), "dropped with the nack")
			}
			transport.DeliveryFrom(msg.Context()).Reject(errors.New("not JSON"))
			msg.Nack()
			msg = next(t, messages)
			require.Equal(t, second.UUID, msg.UUID)
			msg.Ack()

			_, deads := subscribe(t, tr, dead, transport.SubscriberConfig{Consumer: "dead-letters"})
			msg = next(t, deads)
			require.Equal(t, first.UUID, msg.UUID)
			require.Equal(t, message.Metadata{
				transport.KeyMetadata: "k", kafka.DeadReasonMetadata: "rejected", kafka.DeadErrorMetadata: "not JSON",
				kafka.DeadConsumerMetadata: "c", kafka.DeadTopicMetadata: topic, kafka.DeadAttemptsMetadata: "1",
				kafka.DeadPartitionMetadata: msg.Metadata[kafka.DeadPartitionMetadata], kafka.DeadOffsetMetadata: "0",
			}, msg.Metadata)
			msg.Ack()
		})
	}
}
