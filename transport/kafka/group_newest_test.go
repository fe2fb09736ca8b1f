package kafka_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// TestSecondTopicNewest: a consumer that begins at the newest message does so in each of its topics. When it was a member of
// its group for the first one, the second was delivered from its beginning.
func TestSecondTopicNewest(t *testing.T) {
	t.Parallel()
	addresses := brokers(t)
	for _, delivery := range []kafka.Delivery{kafka.AtLeastOnce, kafka.Transactional} {
		for _, assignment := range []kafka.Assignment{kafka.CooperativeSticky, kafka.Range} {
			t.Run(delivery.String()+"/"+assignment.String(), func(t *testing.T) {
				t.Parallel()
				config := newest()
				config.Brokers, config.Delivery, config.Consumer.Assignment = addresses, delivery, assignment
				tr := connect(t, config)
				plain, err := tr.PlainPublisher()
				require.NoError(t, err)
				consumer := consumerName(t)
				for range 3 {
					topic := devtest.Topic(t)
					for range 20 {
						require.NoError(t, plain.Publish(topic, newMessage("", "before")))
					}
					_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: consumer, Concurrency: 1})
					require.NoError(t, plain.Publish(topic, newMessage("", "later")))
					msg := next(t, messages)
					require.Equal(t, "later", string(msg.Payload))
					msg.Ack()
				}
			})
		}
	}
}

// TestSecondTopicNewestOfAnotherProcess: the group's members are of another process.
func TestSecondTopicNewestOfAnotherProcess(t *testing.T) {
	t.Parallel()
	config, consumer, topic := newest(), consumerName(t), devtest.Topic(t)
	config.Brokers = brokers(t)
	first, second := connect(t, config), connect(t, config)
	subscribe(t, first, devtest.Topic(t), transport.SubscriberConfig{Consumer: consumer})
	publisher := batcher(t, second)
	require.NoError(t, publisher.Publish(topic, newMessage("k", "before")))
	_, messages := subscribe(t, second, topic, transport.SubscriberConfig{Consumer: consumer})
	require.NoError(t, publisher.Publish(topic, newMessage("k", "later")))
	require.Equal(t, "later", string(next(t, messages).Payload))
}

// TestNewestWithAnOpenTransaction: what a transaction has written that ends after Subscribe is published after it.
func TestNewestWithAnOpenTransaction(t *testing.T) {
	t.Parallel()
	addresses := brokers(t)
	client, topic := transactor(t, addresses), devtest.Topic(t)
	_, err := kadm.NewClient(client).CreateTopic(t.Context(), 1, -1, nil, topic)
	require.NoError(t, err)
	transact(t, client, topic, 2, kgo.TryCommit)
	require.NoError(t, client.BeginTransaction())
	require.NoError(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("open")}).FirstErr())
	config := newest()
	config.Brokers = addresses
	_, messages := subscribe(t, connect(t, config), topic, transport.SubscriberConfig{Consumer: consumerName(t)})
	require.NoError(t, client.EndTransaction(t.Context(), kgo.TryCommit))
	require.Equal(t, "open", string(next(t, messages).Payload))
}

// TestNewestAfterAnAddedPartition: a partition that the topic gets later is read from its beginning, also after a restart of the group
// before its first message was done.
func TestNewestAfterAnAddedPartition(t *testing.T) {
	t.Parallel()
	for _, delivery := range []kafka.Delivery{kafka.AtLeastOnce, kafka.Transactional} {
		t.Run(delivery.String(), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1)
			c.put(0, "before")
			config := newest()
			config.Delivery = delivery
			first, _ := c.join(config)
			require.NoError(t, first.Close())
			_, err := kadm.NewClient(c.kgo).CreatePartitions(t.Context(), 1, c.topic)
			require.NoError(t, err)
			c.kgo.PurgeTopicsFromProducing(c.topic) // it asks for the partitions again
			c.put(1, "in the new partition")
			_, messages := c.join(config)
			require.Equal(t, "in the new partition", next(t, messages).UUID)
		})
	}
}

// TestNewestInANewTopicOfAPattern: the same holds for a topic that comes to match the pattern of a group that has other members, and so
// has committed its beginning as a member.
func TestNewestInANewTopicOfAPattern(t *testing.T) {
	t.Parallel()
	cluster := fake(t, kfake.SeedTopics(1, "orders.a", "bills"))
	config, consumer := newest(), transport.SubscriberConfig{Consumer: "c", Concurrency: 10}
	config.Brokers = cluster.ListenAddrs()
	tr := connect(t, config)
	_, bills := subscribe(t, tr, "bills", consumer)
	_, orders := subscribe(t, connect(t, config), "^orders", consumer)
	p := batcher(t, tr)
	require.NoError(t, p.Publish("orders.a", newMessage("", "a")))
	next(t, orders).Ack()
	require.NoError(t, p.Publish("orders.b", newMessage("", "b")))
	require.Equal(t, "b", string(next(t, orders).Payload))
	require.Empty(t, bills)
}

// TestNewestBesideAProcessThatBeginsTheGroup: two processes subscribe at once. What is published after the first Subscribe has returned is
// delivered, although the second process has begun to look for the group's beginning before, and looks at the ends afterwards.
func TestNewestBesideAProcessThatBeginsTheGroup(t *testing.T) {
	t.Parallel()
	cluster := fake(t, kfake.SeedTopics(1, "orders"))
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	publish := func(text string) {
		require.NoError(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Value: []byte(text)}).FirstErr())
	}
	publish("before")
	var first sync.Once
	cluster.ControlKey(int16(kmsg.ListOffsets), func(kmsg.Request) (kmsg.Response, error, bool) {
		first.Do(func() {
			cluster.SleepControl(func() { // the first process
				begins := kadm.Offsets{}
				begins.AddOffset("orders", 0, 1, -1)
				assert.NoError(t, kadm.NewClient(client).CommitAllOffsets(t.Context(), "c", begins))
				publish("later")
			})
		})
		return nil, nil, false
	})
	config := newest()
	config.Brokers = cluster.ListenAddrs()
	_, messages := subscribe(t, connect(t, config), "orders", transport.SubscriberConfig{Consumer: "c"})
	require.Equal(t, "later", string(next(t, messages).Payload))
}
