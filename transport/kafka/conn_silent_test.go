package kafka_test

import (
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// silentBroker accepts connections and never answers, as a stopped process does.
func silentBroker(t testing.TB) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	return listener.Addr().String()
}

// TestSilentSeed: of the brokers in the configuration one accepts connections and keeps silent. In six of ten starts
// publishing failed for a minute, and consumers got nothing for as long.
func TestSilentSeed(t *testing.T) {
	t.Parallel()
	for _, delivery := range []kafka.Delivery{kafka.AtLeastOnce, kafka.Transactional} {
		t.Run(delivery.String(), func(t *testing.T) {
			t.Parallel()
			cluster := fake(t, kfake.NumBrokers(3))
			seeds := slices.Concat(cluster.ListenAddrs(), []string{silentBroker(t), silentBroker(t)})
			began := time.Now()
			for range 10 {
				tr := connect(t, kafka.Config{Brokers: seeds, Delivery: delivery})
				plain, err := tr.PlainPublisher()
				require.NoError(t, err)
				topic := devtest.Topic(t)
				require.NoError(t, plain.Publish(topic, newMessage("k", "v")))
				_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c"})
				next(t, messages).Ack()
				require.NoError(t, tr.Close())
			}
			require.Less(t, time.Since(began), wait)
		})
	}
}
