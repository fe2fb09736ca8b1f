package kafka_test

import (
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// TestConcurrentStarts: a service starts its handlers at once. Of 200 starts with five handlers up to 13 failed with
// "broker not connected": one goroutine was about to open the connection that another wanted to use.
func TestConcurrentStarts(t *testing.T) {
	t.Parallel()
	const atOnce = 5
	addresses := brokers(t)
	topics := make([]string, atOnce)
	for i := range topics {
		topics[i] = devtest.Topic(t)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(addresses...))
	require.NoError(t, err)
	defer client.Close()
	_, err = kadm.NewClient(client).CreateTopics(t.Context(), 1, -1, nil, topics...)
	require.NoError(t, err)
	consumer := consumerName(t)
	for i := range devtest.Storm(1000, 100) {
		tr, err := kafka.New(t.Context(), kafka.Config{Brokers: addresses})
		require.NoError(t, err)
		s, err := tr.Subscriber(transport.SubscriberConfig{Consumer: consumer})
		require.NoError(t, err)
		var starting sync.WaitGroup
		for _, topic := range topics {
			starting.Go(func() {
				if i%5 > 0 { // to join a group takes longer
					assertNoError(t, s.(message.SubscribeInitializer).SubscribeInitialize(topic))
					return
				}
				_, err := s.Subscribe(t.Context(), topic)
				assertNoError(t, err)
			})
		}
		starting.Wait()
		require.NoError(t, tr.Close())
	}
}
