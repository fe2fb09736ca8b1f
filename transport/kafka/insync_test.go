package kafka_test

import (
	"slices"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport/kafka"
)

// TestOutputsBelowMinInSyncReplicas: a partition has fewer replicas in sync than its topic's min.insync.replicas, so its leader refuses
// every write. Each transaction of a member then failed after its whole timeout, and the member committed nothing until the partition
// was repaired. Only partitions whose messages have outputs there wait. Nothing becomes a dead letter, and the order stays.
func TestOutputsBelowMinInSyncReplicas(t *testing.T) {
	t.Parallel()
	cluster := devtest.Kafka(t, devstack.KafkaConfig{})
	const atLeastOnce = "at least once"
	withoutTransactions := func(c kafka.Config) kafka.Config {
		c.Delivery, c.Transaction = kafka.AtLeastOnce, kafka.Transaction{}
		return c
	}
	type running struct {
		*copying
		*copier
		short string
	}
	all := map[string]running{}
	for name, change := range map[string]func(kafka.Config) kafka.Config{txnV1.name: txnV1.of, txnV2.name: txnV2.of, atLeastOnce: withoutTransactions} {
		c := newCopying(t, cluster.Brokers(), 0)
		short := devtest.Topic(t)
		assign(t, c.client, short, 2, []int32{1, 3})
		all[name] = running{c, c.start(t, change(c.config(kafka.Config{})), func(msg *message.Message, publisher message.Publisher) error {
			if string(msg.Payload) == "good" {
				return c.copy(msg, publisher)
			}
			return publisher.Publish(short, outputOf(msg))
		}), short}
	}
	require.NoError(t, cluster.AwaitInSync(t.Context()))
	require.NoError(t, cluster.Kill(t.Context(), 3))
	for _, r := range all {
		require.Eventually(t, func() bool {
			topics, err := r.admin.ListTopics(t.Context(), r.short)
			return err == nil && topics.Error() == nil && len(topics[r.short].Partitions[0].ISR) == 1
		}, wait, tick)
		for n := range 10 {
			r.put(t, 0, strconv.Itoa(n))
		}
	}
	for range 5 {
		for name, r := range all {
			r.put(t, 1, "good")
			require.Eventually(t, func() bool { return r.behind(t)[1] == 0 }, wait/3, tick, name)
			require.EqualValues(t, 10, r.behind(t)[0])
		}
	}
	require.NoError(t, cluster.Start(t.Context(), 3))
	for name, r := range all {
		r.await(t)
		r.stop(t)
		require.Equal(t, slices.Repeat([]string{"good"}, 5), r.read(t, r.out), "and no dead letters")
		got := r.read(t, r.short)
		if name == atLeastOnce {
			slices.Sort(got)
			got = slices.Compact(got)
		}
		require.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, got)
	}
}

// TestMinInSyncReplicasIsLowered: no replica joins, and the partition takes writes again.
func TestMinInSyncReplicasIsLowered(t *testing.T) {
	t.Parallel()
	cluster := fake(t)
	c := newCopying(t, cluster.ListenAddrs(), 0)
	refusals := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: c.out, Err: kerr.NotEnoughReplicas, Count: -1})
	p := c.start(t, c.config(kafka.Config{}), func(msg *message.Message, publisher message.Publisher) error {
		if string(msg.Payload) == "without an output" {
			return nil
		}
		return c.copy(msg, publisher)
	})
	for n := range 10 {
		c.put(t, 0, strconv.Itoa(n))
	}
	c.put(t, 1, "without an output")
	require.Eventually(t, func() bool { return c.behind(t)[1] == 0 }, wait, tick)
	refusals.Remove()
	c.await(t)
	p.stop(t)
	require.ElementsMatch(t, []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, c.read(t, c.out))
}
