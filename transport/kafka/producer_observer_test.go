package kafka_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/transport/kafka"
)

func TestProducerMetrics(t *testing.T) {
	t.Parallel()
	cluster := fake(t, kfake.SeedTopics(1, "topic"))
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "topic", Err: kerr.NotEnoughReplicas, Count: 2})
	m := newMeter()
	p := batcher(t, connect(t, kafka.Config{Brokers: cluster.ListenAddrs(), MeterProvider: m.provider}))
	requireAll(t, p.PublishBatch(t.Context(), "topic", numbered("k", 0, 3)))
	requireAll(t, p.PublishBatch(t.Context(), "topic", numbered("k", 3, 2)))
	require.Equal(t, map[string]int64{
		"millrace.kafka.produce.messages": 5, "millrace.kafka.produce.batches": 2, "millrace.kafka.produce.failures": 2,
	}, m.collect(t))
	require.Equal(t, []string{"topic"}, m.topics(t, "millrace.kafka.produce.messages"))
}
