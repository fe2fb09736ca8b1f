package kafka_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/transporttest"
)

func TestConformance(t *testing.T) {
	addresses := brokers(t)
	transporttest.Run(t, func(t testing.TB) transport.Transport {
		return connect(t, kafka.Config{Brokers: addresses})
	}, transporttest.Config{DeleteTopic: deletes(t, addresses)})
}

// TestConformanceOfFake keeps the in-process fake usable for the tests of services.
func TestConformanceOfFake(t *testing.T) {
	addresses := fake(t).ListenAddrs()
	transporttest.Run(t, func(t testing.TB) transport.Transport {
		return connect(t, kafka.Config{Brokers: addresses})
	}, transporttest.Config{DeleteTopic: deletes(t, addresses)})
}

func deletes(t testing.TB, addresses []string) func(testing.TB, string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addresses...))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return func(t testing.TB, topic string) {
		_, err := kadm.NewClient(client).DeleteTopic(t.Context(), topic)
		require.NoError(t, err)
	}
}
