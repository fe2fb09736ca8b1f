package kafka_test

import (
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// leaderless has the fake, which has one broker, answer that partition 1 of the topic has no leader, until it is stored
// false.
func leaderless(t *testing.T, cluster *kfake.Cluster, topic string, partitions int32) *atomic.Bool {
	t.Helper()
	host, port, err := net.SplitHostPort(cluster.ListenAddrs()[0])
	require.NoError(t, err)
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	node, id := cluster.LeaderFor(topic, 0), cluster.TopicInfo(topic).TopicID
	var gone atomic.Bool
	gone.Store(true)
	cluster.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		request := r.(*kmsg.MetadataRequest)
		if !gone.Load() || len(request.Topics) != 1 || *request.Topics[0].Topic != topic {
			return nil, nil, false
		}
		response := request.ResponseKind().(*kmsg.MetadataResponse)
		broker := kmsg.NewMetadataResponseBroker()
		broker.NodeID, broker.Host, broker.Port = node, host, int32(number)
		response.Brokers, response.ControllerID = append(response.Brokers, broker), node
		answer := kmsg.NewMetadataResponseTopic()
		answer.Topic, answer.TopicID = &topic, id
		for n := range partitions {
			p := kmsg.NewMetadataResponseTopicPartition()
			p.Partition, p.Leader, p.LeaderEpoch = n, node, -1
			if n == 1 {
				p.Leader, p.ErrorCode = -1, kerr.LeaderNotAvailable.Code
			}
			answer.Partitions = append(answer.Partitions, p)
		}
		response.Topics = append(response.Topics, answer)
		return response, nil, true
	})
	return &gone
}

// keyInto is a key of the partition, of so many.
func keyInto(t *testing.T, cluster *kfake.Cluster, partition, of int32) string {
	t.Helper()
	topic := devtest.Topic(t)
	require.NoError(t, cluster.CreateTopic(topic, of, nil))
	p := batcher(t, connect(t, kafka.Config{Brokers: cluster.ListenAddrs()}))
	for i := range 100 {
		require.NoError(t, p.Publish(topic, newMessage(fmt.Sprint(i), "x")))
		if cluster.PartitionInfo(topic, partition).HighWatermark > 0 {
			return fmt.Sprint(i)
		}
	}
	require.Fail(t, "no key is of the partition")
	return ""
}

// TestLeaderless: a partition without a leader delays none that has one.
func TestLeaderless(t *testing.T) {
	t.Parallel()
	t.Run("publishing", func(t *testing.T) {
		t.Parallel()
		cluster := fake(t, kfake.SeedTopics(3, "topic"))
		gone := leaderless(t, cluster, "topic", 3)
		there, missing := keyInto(t, cluster, 0, 3), keyInto(t, cluster, 1, 3)
		p := batcher(t, connect(t, kafka.Config{Brokers: cluster.ListenAddrs()}))
		late := make(chan []error, 1)
		go func() { late <- p.PublishBatch(t.Context(), "topic", numbered(missing, 0, 2)) }()
		began := time.Now()
		for i := range 5 {
			// Each time its partition needs its leader anew.
			cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "topic", Partitions: []int32{0}, Err: kerr.NotLeaderForPartition})
			requireAll(t, p.PublishBatch(t.Context(), "topic", numbered(there, i, 1)))
			requireAll(t, p.PublishBatch(t.Context(), "topic", numbered("", i, 1)))
		}
		require.Less(t, time.Since(began), wait/2)
		gone.Store(false)
		requireAll(t, <-late)
		records := read(t, cluster.ListenAddrs(), "topic", 12)
		requireNumbered(t, payloads(records, there), 5)
		requireNumbered(t, payloads(records, missing), 2)
	})
	t.Run("in transactions", func(t *testing.T) {
		t.Parallel()
		cluster := fake(t)
		c := newCopying(t, cluster.ListenAddrs(), 0)
		gone := leaderless(t, cluster, c.out, copyPartitions)
		missing := keyInto(t, cluster, 1, copyPartitions)
		p := c.start(t, c.config(kafka.Config{}), func(msg *message.Message, publisher message.Publisher) error {
			o := outputOf(msg)
			transport.SetKey(o, map[bool]string{true: missing}[string(msg.Payload) == "missing"])
			return publisher.Publish(c.out, o)
		})
		c.put(t, 0, "missing")
		for range 20 {
			c.put(t, 1, "without a key")
		}
		require.Eventually(t, func() bool { return c.lag(t) == 1 }, wait, tick)
		gone.Store(false)
		c.await(t)
		p.stop(t)
		require.Len(t, c.read(t, c.out), 21)
	})
}

// assign creates a topic of one partition for each list of replicas.
func assign(t *testing.T, client *kgo.Client, name string, minInSync int, replicas ...[]int32) {
	t.Helper()
	request := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, -1, -1
	for n, of := range replicas {
		a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		a.Partition, a.Replicas = int32(n), of
		topic.ReplicaAssignment = append(topic.ReplicaAssignment, a)
	}
	enough := kmsg.NewCreateTopicsRequestTopicConfig()
	enough.Name, enough.Value = "min.insync.replicas", kmsg.StringPtr(strconv.Itoa(minInSync))
	topic.Configs = append(topic.Configs, enough)
	request.Topics = append(request.Topics, topic)
	response, err := request.RequestWith(t.Context(), client)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(response.Topics[0].ErrorCode))
}

// TestLeaderlessPartitionOfABrokerThatIsKilled: each partition of the output is on one broker alone, one of which is killed,
// also in the middle of transactions: Kafka cannot end these before the broker is back.
func TestLeaderlessPartitionOfABrokerThatIsKilled(t *testing.T) {
	t.Parallel()
	cluster := devtest.Kafka(t, devstack.KafkaConfig{})
	c := newCopying(t, cluster.Brokers(), 0)
	out := devtest.Topic(t)
	assign(t, c.client, out, 1, []int32{1}, []int32{3}, []int32{2})
	require.NoError(t, cluster.AwaitInSync(t.Context()))
	c.out = out
	missing := keyInto(t, fake(t), 1, 3)
	p := c.start(t, c.config(kafka.Config{}), func(msg *message.Message, publisher message.Publisher) error {
		o := outputOf(msg)
		transport.SetKey(o, map[bool]string{true: missing}[string(msg.Payload) == "missing"])
		return publisher.Publish(c.out, o)
	})
	for i := range 20 {
		c.put(t, 0, "missing")
		if i == 10 {
			require.NoError(t, cluster.Kill(t.Context(), 3))
		}
	}
	for i := range int32(20) {
		c.put(t, 1+i%2, "without a key")
	}
	require.Eventually(t, func() bool {
		behind := c.behind(t)
		return behind[1] == 0 && behind[2] == 0
	}, time.Minute, 10*tick)
	require.Positive(t, c.behind(t)[0])
	require.NoError(t, cluster.Start(t.Context(), 3))
	c.await(t)
	p.stop(t)
	require.Len(t, c.read(t, out), 40)
}
