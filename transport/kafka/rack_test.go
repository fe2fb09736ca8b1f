package kafka_test

import (
	"bytes"
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// TestRackIsToldToTheBrokers: each fetch names the rack.
func TestRackIsToldToTheBrokers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	racks := make(chan string, 1)
	c.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		select {
		case racks <- r.(*kmsg.FetchRequest).Rack:
		default:
		}
		return nil, nil, false
	})
	c.join(kafka.Config{Rack: "zone-b"})
	require.Equal(t, "zone-b", <-racks)
}

// TestFetchFromFollower: a consumer reads from the replica in its own rack, and from the leader where it names none.
func TestFetchFromFollower(t *testing.T) {
	t.Parallel()
	cluster := devtest.Kafka(t, devstack.KafkaConfig{Brokers: 3, Settings: map[string]string{
		"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
	}})
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.Brokers()...))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	admin, topic := kadm.NewClient(client), devtest.Topic(t)
	_, err = admin.CreateTopic(t.Context(), 1, 3, nil, topic)
	require.NoError(t, err)
	random, large := rand.New(rand.NewSource(1)), bytes.Repeat([]byte("x"), 100_000)
	events := make([]*message.Message, 50)
	for i := range events {
		_, _ = random.Read(large)
		events[i] = newMessage("", string(large))
	}
	require.NoError(t, batcher(t, connect(t, kafka.Config{Brokers: cluster.Brokers()})).Publish(topic, events...))
	read := func(follow bool) (fromLeader, fromFollower int) {
		described, err := admin.ListTopics(t.Context(), topic)
		require.NoError(t, err)
		leader, network := described[topic].Partitions[0].Leader, newFaultNet(nil)
		config := kafka.Config{Brokers: cluster.Brokers(), Dial: network.dial}
		if follow {
			config.Rack = fmt.Sprint("rack-", leader%3+1)
		}
		tr := connect(t, config)
		_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "reader" + watermill.NewShortUUID()})
		for range events {
			next(t, messages).Ack()
		}
		require.NoError(t, tr.Close())
		return network.readFrom(cluster.Brokers()[leader-1]), network.readFrom(cluster.Brokers()[leader%3])
	}
	fromLeader, fromFollower := read(false)
	require.Greater(t, fromLeader, len(events)*len(large))
	require.Less(t, fromFollower, len(large))
	// The leader sends records itself while the follower is behind, as happens on a busy machine.
	for deadline := time.Now().Add(time.Minute); ; {
		fromLeader, fromFollower = read(true)
		if fromLeader < len(large) && fromFollower > len(events)*len(large) {
			return
		}
		require.True(t, time.Now().Before(deadline), "the leader sent %d bytes, the follower %d", fromLeader, fromFollower)
	}
}
