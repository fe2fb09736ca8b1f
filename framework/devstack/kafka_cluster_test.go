package devstack

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/framework/devstack/internal/leftover"
)

// Whichever broker is down, records are taken; what is acknowledged is there when another one is down after that.
func TestKafkaCluster(t *testing.T) {
	_, err := findKafka()
	needs(t, string(Kafka), err)
	dir := scratch(t)
	began := time.Now()
	cluster, err := StartKafka(t.Context(), KafkaConfig{Settings: map[string]string{"num.partitions": "3"}})
	require.NoError(t, err)
	t.Logf("%s in %v at %v", cluster.Source(), time.Since(began), cluster.Brokers())
	require.NoError(t, cluster.AwaitInSync(t.Context()))

	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.Brokers()...), kgo.AllowAutoTopicCreation(),
		kgo.ConsumeTopics("records"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RecordDeliveryTimeout(waitFor))
	require.NoError(t, err)
	defer client.Close()
	produce := func(value string) {
		t.Helper()
		require.NoError(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: "records", Value: []byte(value)}).FirstErr())
	}
	require.Eventually(t, func() bool {
		return client.ProduceSync(t.Context(), &kgo.Record{Topic: "records", Value: []byte("first")}).FirstErr() == nil
	}, waitFor, tick)
	assert.Equal(t, "2", topicSetting(t, client, "records", "min.insync.replicas"))

	require.NoError(t, cluster.Kill(t.Context(), 1))
	assert.True(t, closed(cluster.Brokers()[0]))
	assert.ErrorContains(t, cluster.Kill(t.Context(), 1), "down already")
	require.NoError(t, cluster.AwaitFenced(t.Context(), 1))
	produce("second")
	require.NoError(t, cluster.Start(t.Context(), 1))
	require.NoError(t, cluster.AwaitInSync(t.Context()))

	require.NoError(t, cluster.Terminate(t.Context(), 2))
	produce("third")
	require.NoError(t, cluster.Start(t.Context(), 2))
	assert.ErrorContains(t, cluster.Start(t.Context(), 2), "not down")
	assert.ErrorContains(t, cluster.Terminate(t.Context(), 4), "want 1 to 3")
	require.NoError(t, cluster.AwaitInSync(t.Context()))
	assert.Equal(t, map[string]bool{"first": true, "second": true, "third": true}, consume(t, client, 3))

	require.NoError(t, cluster.Kill(t.Context(), 3)) // one that is down is stopped like the others
	require.NoError(t, cluster.Stop())
	require.NoError(t, cluster.Stop())
	assert.ErrorContains(t, cluster.Start(t.Context(), 3), "start Kafka broker 3 again")
	assert.Empty(t, leftover.In(t, dir))
}

func consume(t *testing.T, client *kgo.Client, want int) map[string]bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitFor)
	defer cancel()
	got := map[string]bool{}
	for len(got) < want {
		fetches := client.PollFetches(ctx)
		require.NoError(t, ctx.Err(), "%v", got)
		fetches.EachRecord(func(record *kgo.Record) { got[string(record.Value)] = true })
	}
	return got
}

func topicSetting(t *testing.T, client *kgo.Client, topic, name string) string {
	t.Helper()
	request := kmsg.NewPtrDescribeConfigsRequest()
	resource := kmsg.NewDescribeConfigsRequestResource()
	resource.ResourceType, resource.ResourceName, resource.ConfigNames = kmsg.ConfigResourceTypeTopic, topic, []string{name}
	request.Resources = append(request.Resources, resource)
	response, err := request.RequestWith(t.Context(), client)
	require.NoError(t, err)
	require.Len(t, response.Resources, 1)
	require.Len(t, response.Resources[0].Configs, 1)
	return *response.Resources[0].Configs[0].Value
}

// A program has one set of brokers.
func TestOneKafkaPerStack(t *testing.T) {
	scratch(t)
	stack := &Stack{hooks: hooks{skipInstalled: true}}
	require.NoError(t, stack.Add(t.Context(), Kafka3))
	assert.Len(t, stack.KafkaBrokers(), 3)
	assert.Len(t, stack.Env(), 1)
	assert.ErrorContains(t, stack.Add(t.Context(), Kafka), "the stack has kafka3, and both are MILLRACE_KAFKA_BROKERS")
	require.NoError(t, stack.Stop())
}
