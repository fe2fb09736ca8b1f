package kafka_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// transact writes n messages to partition 0 of the topic in one transaction, and aborts it or not.
func transact(t *testing.T, client *kgo.Client, topic string, n int, end kgo.TransactionEndTry) {
	t.Helper()
	require.NoError(t, client.BeginTransaction())
	for i := range n {
		client.Produce(t.Context(), &kgo.Record{Topic: topic, Value: fmt.Append(nil, i)}, nil)
	}
	require.NoError(t, client.Flush(t.Context()))
	require.NoError(t, client.EndTransaction(t.Context(), end))
}

// transactor is a client that writes transactions to partition 0.
func transactor(t *testing.T, addresses []string) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addresses...), kgo.TransactionalID(devtest.Topic(t)), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// TestLagBehindMarkers: the end of a transaction takes an offset, and so do aborted messages. A group that had acked all
// messages lagged behind them.
func TestLagBehindMarkers(t *testing.T) {
	t.Parallel()
	for _, delivery := range []kafka.Delivery{kafka.AtLeastOnce, kafka.Transactional} {
		t.Run(delivery.String(), func(t *testing.T) {
			t.Parallel()
			addresses := brokers(t)
			client, topic, consumer, m := transactor(t, addresses), devtest.Topic(t), consumerName(t), newMeter()
			admin := kadm.NewClient(client)
			_, err := admin.CreateTopic(t.Context(), 1, -1, nil, topic)
			require.NoError(t, err)
			tr := connect(t, kafka.Config{Brokers: addresses, Delivery: delivery, MeterProvider: m.provider})
			lag := func() int64 {
				i, err := tr.Inspect(t.Context(), topic, consumer)
				require.NoError(t, err)
				return i.Lag
			}
			transact(t, client, topic, 3, kgo.TryCommit)
			transact(t, client, topic, 2, kgo.TryAbort)
			transact(t, client, topic, 4, kgo.TryCommit)
			require.EqualValues(t, 7, lag(), "of a group that has not begun")
			_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: consumer})
			for range 7 {
				next(t, messages).Ack()
			}
			require.Eventually(t, func() bool { return lag() == 0 }, wait, 10*tick)
			for range 3 {
				transact(t, client, topic, 2, kgo.TryAbort)
			}
			m.eventually(t, "millrace.kafka.lag", 0)
			// The group's offset is the end of the partition, so other tools see no lag either.
			require.Eventually(t, func() bool {
				ends, err := admin.ListEndOffsets(t.Context(), topic)
				require.NoError(t, err)
				committed, err := admin.FetchOffsets(t.Context(), consumer)
				require.NoError(t, err)
				end, _ := ends.Lookup(topic, 0)
				at, _ := committed.Lookup(topic, 0)
				return at.At == end.Offset
			}, wait, 10*tick)
			transact(t, client, topic, 1, kgo.TryCommit)
			next(t, messages).Ack()
			require.Eventually(t, func() bool { return lag() == 0 }, wait, 10*tick)
		})
	}
}
