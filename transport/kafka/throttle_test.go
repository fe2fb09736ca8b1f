package kafka_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// requests returns the counts and the sums of a metric of requests, by request.
func (m *meter) requests(t testing.TB, name string) (counts map[string]uint64, sums map[string]float64) {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, m.reader.Collect(t.Context(), &all))
	counts, sums = map[string]uint64{}, map[string]float64{}
	for _, scope := range all.ScopeMetrics {
		for _, metric := range scope.Metrics {
			if metric.Name != name {
				continue
			}
			for _, p := range metric.Data.(metricdata.Histogram[float64]).DataPoints {
				address, _ := p.Attributes.Value("server.address")
				require.NotEmpty(t, address.AsString())
				request, _ := p.Attributes.Value("millrace.request")
				counts[request.AsString()] += p.Count
				sums[request.AsString()] += p.Sum
			}
		}
	}
	return counts, sums
}

// TestThrottle: a quota of the brokers slowed a service down, and nothing told of it.
func TestThrottle(t *testing.T) {
	t.Parallel()
	addresses, m, clientID := devtest.Real(t, devstack.Kafka).KafkaBrokers(), newMeter(), consumerName(t) // the fake keeps no quotas
	client, err := kgo.NewClient(kgo.SeedBrokers(addresses...))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	altered, err := kadm.NewClient(client).AlterClientQuotas(t.Context(), []kadm.AlterClientQuotaEntry{{
		Entity: kadm.ClientQuotaEntity{{Type: "client-id", Name: &clientID}},
		Ops:    []kadm.AlterClientQuotaOp{{Key: "producer_byte_rate", Value: 80_000}}, // over 10 s
	}})
	require.NoError(t, err)
	require.NoError(t, altered[0].Err)

	tr := connect(t, kafka.Config{Brokers: addresses, ClientID: clientID, Delivery: kafka.Transactional, MeterProvider: m.provider, Producer: kafka.ProducerConfig{Compression: kafka.Uncompressed}})
	topic := devtest.Topic(t)
	plain, err := tr.PlainPublisher()
	require.NoError(t, err)
	require.NoError(t, plain.Publish(topic, newMessage("k", string(make([]byte, 900_000)))))
	_, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: consumerName(t)})
	next(t, messages).Ack()

	// Requests of sarama, of our own on its connections, and of our own on connections to coordinators.
	for _, request := range []string{"metadata", "fetch", "join_group", "produce", "init_producer_id"} {
		require.Eventually(t, func() bool {
			counts, _ := m.requests(t, "millrace.kafka.request.duration")
			return counts[request] > 0
		}, wait, tick, request)
	}
	counts, sums := m.requests(t, "millrace.kafka.request.throttle")
	require.NotZero(t, counts["produce"])
	require.Positive(t, sums["produce"])
}
