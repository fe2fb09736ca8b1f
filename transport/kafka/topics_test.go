package kafka_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// A topic is created once, however many use it first, with what Config.Topics says.
func TestTopicIsCreatedOnce(t *testing.T) {
	t.Parallel()
	cluster := fake(t)
	creations := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Observe: true, Count: -1})
	p := batcher(t, connect(t, kafka.Config{Brokers: cluster.ListenAddrs(), Topics: kafka.Topics{Partitions: 7}}))
	var running sync.WaitGroup
	for range 20 {
		running.Go(func() { assertNoError(t, p.Publish("topic", newMessage("", "x"))) })
	}
	running.Wait()
	require.Equal(t, 1, creations.Hits())
	require.Len(t, cluster.PartitionInfos("topic"), 7)
}

// TestTopicSettings: a topic that is created has the settings, and a topic that exists keeps its own.
func TestTopicSettings(t *testing.T) {
	t.Parallel()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers(t)...))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	admin, created, known := kadm.NewClient(client), devtest.Topic(t), devtest.Topic(t)
	_, err = admin.CreateTopic(t.Context(), 1, 1, nil, known)
	require.NoError(t, err)
	p := batcher(t, connect(t, kafka.Config{Brokers: brokers(t), Topics: kafka.Topics{Settings: kafka.TopicSettings{"cleanup.policy": "compact,delete", "retention.ms": "86400000"}}}))
	for topic, want := range map[string][2]string{created: {"compact,delete", "86400000"}, known: {"delete", "604800000"}} {
		require.NoError(t, p.Publish(topic, newMessage("key", "x")))
		described, err := admin.DescribeTopicConfigs(t.Context(), topic)
		require.NoError(t, err)
		got := map[string]string{}
		for _, config := range described[0].Configs {
			got[config.Key] = config.MaybeValue()
		}
		require.Equal(t, want, [2]string{got["cleanup.policy"], got["retention.ms"]})
	}
}

// TestTopicSettingsAreRefused: the error names the setting, and what the brokers say of it.
func TestTopicSettingsAreRefused(t *testing.T) {
	t.Parallel()
	cluster := fake(t)
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Topic: "topic", Err: kerr.InvalidConfig})
	p := batcher(t, connect(t, kafka.Config{Brokers: cluster.ListenAddrs(), Topics: kafka.Topics{Settings: kafka.TopicSettings{"retention.time": "1"}}}))
	require.ErrorContains(t, p.Publish("topic", newMessage("", "x")), "Config.Topics.Settings")
}

// TestTopicSettingsAsText: a value may have commas.
func TestTopicSettingsAsText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]kafka.TopicSettings{
		"":                  nil,
		"retention.ms=-1":   {"retention.ms": "-1"},
		"retention.ms=":     {"retention.ms": ""},
		"a.b=1, c.d=2":      {"a.b": "1", "c.d": "2"},
		"a.b=x,y,z,c.d=2,3": {"a.b": "x,y,z", "c.d": "2,3"},
	} {
		var got kafka.TopicSettings
		require.NoError(t, got.UnmarshalText([]byte(text)), text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"retention.ms", "a.b=1,a.b=2"} {
		require.ErrorContains(t, new(kafka.TopicSettings).UnmarshalText([]byte(text)), "want name=value", text)
	}
}

// Several processes may create a topic at once: all of them go on.
func TestTopicIsCreatedByAnother(t *testing.T) {
	t.Parallel()
	topic := devtest.Topic(t)
	var running sync.WaitGroup
	for range 4 {
		p := batcher(t, connect(t, kafka.Config{Brokers: brokers(t)}))
		running.Go(func() { assertNoError(t, p.Publish(topic, newMessage("", "x"))) })
	}
	running.Wait()
	read(t, brokers(t), topic, 4)
}

// TestMissingTopic: where topics are not to be created the error says what to do, and later publishes see that it was done.
func TestMissingTopic(t *testing.T) {
	t.Parallel()
	cluster := fake(t)
	config := kafka.Config{Brokers: cluster.ListenAddrs(), Topics: kafka.Topics{Missing: kafka.CheckOnly}}
	p := batcher(t, connect(t, config))
	err := p.Publish("topic", newMessage("", "x"))
	require.ErrorIs(t, err, transport.ErrUnavailable)
	require.ErrorContains(t, err, "create topic (kafka-topics.sh --create --topic topic")
	require.ErrorContains(t, err, "Config.Topics.Missing")
	require.NoError(t, cluster.CreateTopic("topic", 1, nil))
	require.NoError(t, p.Publish("topic", newMessage("", "x")))

	require.NoError(t, cluster.DeleteTopic("topic"))
	err = p.Publish("topic", newMessage("", "x"))
	require.ErrorIs(t, err, transport.ErrUnavailable)
	require.ErrorContains(t, err, "create topic")
}

// Who may not create topics hears of both remedies.
func TestCreatingWithoutTheRight(t *testing.T) {
	t.Parallel()
	cluster := fake(t)
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Topic: "topic", Err: kerr.TopicAuthorizationFailed})
	p := batcher(t, connect(t, kafka.Config{Brokers: cluster.ListenAddrs()}))
	err := p.Publish("topic", newMessage("", "x"))
	require.ErrorIs(t, err, transport.ErrUnavailable)
	require.ErrorContains(t, err, "allow CREATE")
	require.ErrorContains(t, err, "CheckOnly")
	require.NoError(t, p.Publish("topic", newMessage("", "x")), "failures are not remembered")
}

// A topic that was deleted, and perhaps created anew by someone else, is used as it is then.
func TestPublishToADeletedTopic(t *testing.T) {
	t.Parallel()
	for name, recreated := range map[string]bool{"and missing": false, "and created anew": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := fake(t)
			p := batcher(t, connect(t, kafka.Config{Brokers: cluster.ListenAddrs()}))
			requireAll(t, p.PublishBatch(t.Context(), "topic", numbered("k", 8, 2)))
			require.NoError(t, cluster.DeleteTopic("topic"))
			if recreated {
				require.NoError(t, cluster.CreateTopic("topic", 4, nil))
			}
			for i := range 3 {
				requireAll(t, p.PublishBatch(t.Context(), "topic", numbered("k", i, 1)))
			}
			requireNumbered(t, payloads(read(t, cluster.ListenAddrs(), "topic", 3), "k"), 3)
		})
	}
}

// TestMaxMessageBytes: what a topic takes is asked, and what it does not take is told before it is sent.
func TestMaxMessageBytes(t *testing.T) {
	t.Parallel()
	cluster := fake(t)
	require.NoError(t, cluster.CreateTopic("small", 1, map[string]string{"max.message.bytes": "10000"}))
	require.NoError(t, cluster.CreateTopic("large", 1, map[string]string{"max.message.bytes": "3000000"}))
	p := batcher(t, connect(t, kafka.Config{Brokers: cluster.ListenAddrs(), Producer: kafka.ProducerConfig{MaxMessageBytes: 2_500_000, Compression: kafka.Uncompressed}}))
	requests := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Observe: true, Count: -1})
	results := p.PublishBatch(t.Context(), "small", numbered("k", 0, 1))
	requireAll(t, results)
	before := requests.Hits()
	err := p.Publish("small", newMessage("k", strings.Repeat("x", 10_000)))
	require.ErrorIs(t, err, transport.ErrLimit)
	require.ErrorContains(t, err, "max.message.bytes")
	require.Equal(t, before, requests.Hits())
	require.NoError(t, p.Publish("large", newMessage("k", strings.Repeat("x", 2_400_000))))
}

// Partitions that a topic gets are used.
func TestPartitionsAreAdded(t *testing.T) {
	t.Parallel()
	cluster := fake(t, kfake.SeedTopics(1, "topic"))
	p := batcher(t, connect(t, kafka.Config{Brokers: cluster.ListenAddrs()}))
	require.NoError(t, p.Publish("topic", newMessage("", "x")))
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	require.NoError(t, err)
	defer client.Close()
	more := kmsg.NewPtrCreatePartitionsRequest()
	topic := kmsg.NewCreatePartitionsRequestTopic()
	topic.Topic, topic.Count = "topic", 3
	more.Topics = append(more.Topics, topic)
	_, err = more.RequestWith(t.Context(), client)
	require.NoError(t, err)
	// Any failure makes the engine look at the topic; else it does so after a while.
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "topic", Err: kerr.NotLeaderForPartition})
	for range 7 {
		require.NoError(t, p.Publish("topic", newMessage("", "x")))
	}
	for _, info := range cluster.PartitionInfos("topic") {
		require.Positive(t, info.HighWatermark, "partition %d", info.Partition)
	}
}
