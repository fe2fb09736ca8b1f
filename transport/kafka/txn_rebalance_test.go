package kafka_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport/kafka"
)

// TestTransactionsOverRebalances: copiers come and go while messages are copied, with each way of sharing partitions.
func TestTransactionsOverRebalances(t *testing.T) {
	t.Parallel()
	for name, consumer := range map[string]kafka.ConsumerConfig{
		"cooperative": {Assignment: kafka.CooperativeSticky},
		"eager":       {Assignment: kafka.Range},
		"static":      {Assignment: kafka.CooperativeSticky, InstanceID: "pod"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, brokers []string) {
				c := newCopying(t, brokers, 20_000)
				start := func(instance string) *copier {
					config := c.config(kafka.Config{Consumer: consumer})
					if consumer.InstanceID != "" {
						config.Consumer.InstanceID += "-" + instance
					}
					config.Transaction.MaxRecords = 50
					return c.start(t, config, nil)
				}
				progress := func() {
					before := c.lag(t)
					require.Eventually(t, func() bool { lag := c.lag(t); return lag == 0 || lag < before }, wait, tick)
				}
				first := start("1")
				progress()
				second := start("2")
				progress()
				third := start("3")
				progress()
				first.stop(t)
				progress()
				first = start("1")
				progress()
				second.stop(t)
				c.await(t)
				first.stop(t)
				third.stop(t)
				c.exactlyOnce(t)
			})
		})
	}
}
