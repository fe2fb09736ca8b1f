package kafka_test

import (
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

func TestInspect(t *testing.T) {
	t.Parallel()
	topic := devtest.Topic(t)
	tr := connect(t, kafka.Config{Brokers: brokers(t)})
	inspect := func(consumer string) transport.Inspection {
		i, err := tr.Inspect(t.Context(), topic, consumer)
		require.NoError(t, err)
		return i
	}
	assert.Equal(t, transport.Inspection{Lag: -1}, inspect("consumer"), "and it is not made by that")
	assert.Equal(t, transport.Inspection{Lag: -1}, inspect(""))
	assertNoError(t, batcher(t, tr).Publish(topic, newMessage("1", "x"), newMessage("2", "x")))
	assert.Equal(t, transport.Inspection{Topic: true, Lag: -1, Retention: 7 * 24 * time.Hour}, inspect(""))
	assert.Equal(t, transport.Inspection{Topic: true, Lag: 2, Retention: 7 * 24 * time.Hour}, inspect("consumer-"+devtest.Project(t)), "it has handled nothing")
	_, err := tr.Inspect(t.Context(), "no topic", "")
	require.Error(t, err)
}

// A coordinator that has just become one does not answer yet; one that refuses is not mistaken for a group without offsets.
func TestInspectWaitsForTheCoordinator(t *testing.T) {
	t.Parallel()
	cluster := fake(t, kfake.SeedTopics(1, "topic"))
	tr := connect(t, kafka.Config{Brokers: cluster.ListenAddrs()})
	loading := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Err: kerr.CoordinatorLoadInProgress, Count: 8})
	i, err := tr.Inspect(t.Context(), "topic", "consumer")
	require.NoError(t, err)
	assert.Zero(t, i.Lag)
	assert.Equal(t, 8, loading.Hits())

	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Err: kerr.GroupAuthorizationFailed, Count: -1})
	_, err = tr.Inspect(t.Context(), "topic", "consumer")
	assert.ErrorIs(t, err, sarama.ErrGroupAuthorizationFailed)
}
