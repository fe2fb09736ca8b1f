package kafka_test

import (
	"testing"

	"github.com/millrace-go/millrace/transport/kafka"
)

// onBoth runs a test on the fake and on Apache Kafka.
func onBoth(t *testing.T, test func(t *testing.T, brokers []string)) {
	t.Helper()
	t.Run("kfake", func(t *testing.T) {
		t.Parallel()
		test(t, fake(t).ListenAddrs())
	})
	t.Run("Apache Kafka", func(t *testing.T) {
		t.Parallel()
		test(t, brokers(t))
	})
}

// Each message is copied once, and each key keeps its order.
func TestTransactions(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, brokers []string) {
		c := newCopying(t, brokers, 2000)
		p := c.start(t, c.config(kafka.Config{}), nil)
		c.await(t)
		p.stop(t)
		c.exactlyOnce(t)
	})
}
