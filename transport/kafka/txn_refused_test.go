package kafka_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport/kafka"
)

// put writes a message to a partition of the input.
func (c *copying) put(t *testing.T, partition int32, payload string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	defer client.Close()
	record := &kgo.Record{Topic: c.in, Partition: partition, Key: []byte(payload), Value: []byte(payload)}
	require.NoError(t, client.ProduceSync(t.Context(), record).FirstErr())
}

// TestRefusedOutputDelaysNobody: the brokers refuse what the handler of one partition's message has published, and there are
// no dead letters. What the member handles of another partition was committed when that was tried again: after up to a minute.
func TestRefusedOutputDelaysNobody(t *testing.T) {
	t.Parallel()
	cluster := fake(t)
	c := newCopying(t, cluster.ListenAddrs(), 0)
	refusing := devtest.Topic(t)
	require.NoError(t, cluster.CreateTopic(refusing, 1, nil))
	refusals := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: refusing, Err: kerr.InvalidRecord, Count: -1})
	c.put(t, 0, "refused")
	p := c.start(t, c.config(kafka.Config{}), func(msg *message.Message, publisher message.Publisher) error {
		if string(msg.Payload) == "refused" {
			return publisher.Publish(refusing, outputOf(msg))
		}
		return c.copy(msg, publisher)
	})
	// By now the next attempt is more than five seconds away.
	require.Eventually(t, func() bool { return refusals.Hits() >= 10 }, wait, tick)
	before := refusals.Hits()
	for range 3 {
		c.put(t, 1, "good")
		require.Eventually(t, func() bool { return c.lag(t) == 1 }, wait, tick)
	}
	require.Less(t, refusals.Hits()-before, 3, "each waited for the next attempt")
	c.put(t, 0, "behind the refused one")
	refusals.Remove()
	c.await(t)
	p.stop(t)
	require.Len(t, c.read(t, c.out), 4)
	require.Len(t, c.read(t, refusing), 1)
}
