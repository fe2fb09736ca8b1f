package pubsub_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
)

// meter collects metrics.
type meter struct {
	reader   *sdkmetric.ManualReader
	provider *sdkmetric.MeterProvider
}

func newMeter() *meter {
	reader := sdkmetric.NewManualReader()
	return &meter{reader, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))}
}

// collect returns the sums by name, followed by what tells one from another of that name.
func (m *meter) collect(t testing.TB) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, m.reader.Collect(t.Context(), &all))
	got := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, metric := range scope.Metrics {
			for _, p := range metric.Data.(metricdata.Sum[int64]).DataPoints {
				outcome, _ := p.Attributes.Value("millrace.outcome")
				operation, _ := p.Attributes.Value("messaging.operation.name")
				got[strings.TrimSpace(metric.Name+" "+outcome.AsString()+operation.AsString())] += p.Value
			}
		}
	}
	return got
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	_, options := fake(t)
	config := withDeadLetters(devtest.Topic(t))
	m := newMeter()
	config.ClientOptions, config.MeterProvider = options, m.provider
	topic := devtest.Topic(t)
	tr := connect(t, config)
	s, messages := subscribe(t, tr, topic, transport.SubscriberConfig{Consumer: "c", Ordered: true, Concurrency: 1})
	p := batcher(t, tr)
	require.NoError(t, p.Publish(topic, newMessage("key", "poison")))
	for range 3 {
		later(next(t, messages))
	}
	for range 5 {
		next(t, messages).Nack()
	}
	require.NoError(t, p.Publish(topic, newMessage("key", "good")))
	next(t, messages).Ack()
	require.NoError(t, p.Publish(topic, newMessage("key", "held")))
	msg := next(t, messages)
	transport.DeliveryFrom(msg.Context()).RetryAfter(time.Hour)
	msg.Nack()
	require.Eventually(t, func() bool { return m.collect(t)["millrace.pubsub.held"] == 1 }, wait, time.Millisecond)
	require.NoError(t, s.Close())
	require.Equal(t, map[string]int64{
		"millrace.pubsub.deliveries acked":   1,
		"millrace.pubsub.deliveries nacked":  5,
		"millrace.pubsub.deliveries delayed": 4,
		"millrace.pubsub.retries":            7, // of 9 nacks, the last one of poison buried it, and held went back
		"millrace.pubsub.dead_letters":       1,
		"millrace.pubsub.held":               0,
	}, m.collect(t))
}
