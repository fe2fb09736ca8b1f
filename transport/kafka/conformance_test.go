package kafka_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/transporttest"
)

// shortRetry is for Watermill's suite, which nacks each of a few keys twenty times.
var shortRetry = kafka.ConsumerConfig{Retry: kafka.Retry{Max: 200 * time.Millisecond}}

// TestConformance runs the suite on Apache Kafka, or on kfake where there is no Kafka: services are tested on both.
func TestConformance(t *testing.T) {
	t.Parallel()
	addresses := brokers(t)
	transporttest.Run(t, func(t testing.TB) transport.Transport {
		return connect(t, kafka.Config{Brokers: addresses, Consumer: shortRetry})
	}, transporttest.Config{DeleteTopic: deletes(t, addresses)})
}

// TestConformanceOfTransactions: as subscribers of the other kind, but that messages come out of transactions.
func TestConformanceOfTransactions(t *testing.T) {
	t.Parallel()
	addresses := brokers(t)
	transporttest.Run(t, transactional(addresses), transporttest.Config{
		Short: devtest.IsReal(t, devstack.Kafka), DeleteTopic: deletes(t, addresses),
	})
}

func transactional(addresses []string) transporttest.Factory {
	return func(t testing.TB) transport.Transport {
		return plain{connect(t, kafka.Config{Brokers: addresses, Delivery: kafka.Transactional, Consumer: shortRetry})}
	}
}

// plain publishes outside of transactions, as the suite does: its messages follow from no other ones.
type plain struct{ *kafka.Transport }

func (p plain) Publisher() (message.Publisher, error) { return p.PlainPublisher() }

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
