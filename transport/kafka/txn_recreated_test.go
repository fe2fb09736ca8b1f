package kafka_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport/kafka"
)

// recreate deletes the topic and creates it with so many partitions.
func (c *copying) recreate(t *testing.T, topic string, partitions int32) {
	t.Helper()
	_, err := c.admin.DeleteTopic(t.Context(), topic)
	require.NoError(t, err)
	require.Eventually(t, func() bool { // brokers delete in the background
		_, err := c.admin.CreateTopic(t.Context(), partitions, -1, nil, topic)
		return err == nil
	}, wait, 10*tick)
}

// anew is c with a client that remembers nothing of a topic.
func (c *copying) anew(t *testing.T) *copying {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.brokers...))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	same := *c
	same.client, same.admin = client, kadm.NewClient(client)
	return &same
}

// TestRecreatedTopic: an output topic is made anew with fewer partitions while a service runs. It asked for partitions that
// there are no more until it was restarted.
func TestRecreatedTopic(t *testing.T) {
	t.Parallel()
	c := newCopying(t, brokers(t), 0)
	out := devtest.Topic(t)
	_, err := c.admin.CreateTopic(t.Context(), 8, -1, nil, out)
	require.NoError(t, err)
	config := kafka.Config{Brokers: c.brokers, Topics: kafka.Topics{Missing: kafka.CheckOnly}}
	keys := func(of string) (keys []string) {
		for i := range 30 {
			keys = append(keys, fmt.Sprint(of, i))
		}
		return keys
	}
	t.Run("of transactions", func(t *testing.T) {
		copies := *c
		copies.out = out
		p := copies.start(t, copies.config(config), nil)
		for _, partitions := range []int32{2, 1} {
			for i, key := range keys("before") {
				copies.put(t, int32(i%copyPartitions), key)
			}
			copies.await(t)
			copies.recreate(t, out, partitions)
			for i, key := range keys("after") {
				copies.put(t, int32(i%copyPartitions), key)
			}
			copies.await(t)
			require.ElementsMatch(t, keys("after"), copies.anew(t).read(t, out))
		}
		p.stop(t)
	})
	t.Run("of a publisher", func(t *testing.T) {
		topic := devtest.Topic(t)
		_, err := c.admin.CreateTopic(t.Context(), 8, -1, nil, topic)
		require.NoError(t, err)
		publisher := batcher(t, connect(t, config))
		for _, key := range keys("before") {
			require.NoError(t, publisher.Publish(topic, newMessage(key, key)))
		}
		c.recreate(t, topic, 2)
		for _, key := range keys("after") {
			requireAll(t, publisher.PublishBatch(t.Context(), topic, numbered(key, 0, 2)))
		}
		records := read(t, c.brokers, topic, 60)
		for _, key := range keys("after") {
			requireNumbered(t, payloads(records, key), 2)
		}
	})
}
