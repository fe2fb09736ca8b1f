package kafka_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/role"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

const (
	wait = time.Minute
	tick = 5 * time.Millisecond
)

func TestMain(m *testing.M) {
	if role.Name() == poisonable {
		os.Exit(role.Play(playPoisonable))
	}
	devtest.AtOnce(6)
	devtest.Main(m,
		// sarama's metrics have one goroutine for the life of the process.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
		// Watermill's suite closes what it has multiplied, and reads no message after the last that it counts: one that a
		// rebalance has brought again stays in the hands of these.
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe.func2"),
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe.func3"))
}

// brokers returns the addresses of Apache Kafka, or of the fake where it is not to be had.
func brokers(t testing.TB) []string {
	t.Helper()
	return devtest.Start(t, devstack.Kafka).KafkaBrokers()
}

// fake starts a cluster in this process, for what Apache Kafka cannot be made to do.
func fake(t testing.TB, options ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, options...)...)
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	return cluster
}

// connect returns a transport that is closed with the test.
func connect(t testing.TB, config kafka.Config) *kafka.Transport {
	t.Helper()
	if config.DrainTimeout == 0 {
		config.DrainTimeout = 5 * time.Second
	}
	tr, err := kafka.New(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

func batcher(t testing.TB, tr *kafka.Transport) transport.BatchPublisher {
	t.Helper()
	p, err := tr.Publisher()
	require.NoError(t, err)
	return p.(transport.BatchPublisher)
}

// consumerName is a consumer of the test's own.
func consumerName(t testing.TB) string {
	t.Helper()
	return strings.NewReplacer(".", "-").Replace(devtest.Topic(t))
}

func newMessage(key, payload string) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), []byte(payload))
	transport.SetKey(msg, key)
	return msg
}
