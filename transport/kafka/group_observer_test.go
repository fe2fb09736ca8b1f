package kafka_test

import (
	"fmt"
	"math/rand"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
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
	add := func(name string, points []metricdata.DataPoint[int64]) {
		for _, p := range points {
			outcome, _ := p.Attributes.Value("millrace.outcome")
			got[strings.TrimSpace(name+" "+outcome.AsString())] += p.Value
		}
	}
	for _, scope := range all.ScopeMetrics {
		for _, metric := range scope.Metrics {
			switch data := metric.Data.(type) {
			case metricdata.Sum[int64]:
				add(metric.Name, data.DataPoints)
			case metricdata.Gauge[int64]:
				add(metric.Name, data.DataPoints)
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					add(metric.Name, []metricdata.DataPoint[int64]{{Attributes: p.Attributes, Value: p.Sum}})
				}
			}
		}
	}
	return got
}

func (m *meter) rebalances(t testing.TB) int64 {
	got := m.collect(t)
	return got["millrace.kafka.rebalances assigned"] + got["millrace.kafka.rebalances revoked"]
}

func (m *meter) eventually(t testing.TB, name string, value int64) {
	t.Helper()
	require.Eventually(t, func() bool { return m.collect(t)[name] == value }, wait, tick, "%s = %d: %v", name, value, m.collect(t))
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	c, m := newCluster(t, 2), newMeter()
	c.put(0, "poison", "late", "good")
	tr, messages := c.join(kafka.Config{
		MeterProvider: m.provider,
		Consumer:      kafka.ConsumerConfig{DeadLetter: kafka.DeadLetter{Topic: devtest.Topic(t), MaxAttempts: 2}},
	})
	held := map[string]*message.Message{}
	for range 3 {
		msg := next(t, messages)
		held[msg.UUID] = msg
	}
	m.eventually(t, "millrace.kafka.lag", 3)
	m.eventually(t, "millrace.kafka.rebalances assigned", 2)
	held["good"].Ack()
	later(held["late"])
	later(next(t, messages))
	next(t, messages).Ack()
	m.eventually(t, "millrace.kafka.lag", 3) // poison is before them
	held["poison"].Nack()
	next(t, messages).Nack()
	m.eventually(t, "millrace.kafka.dead_letters", 1)
	m.eventually(t, "millrace.kafka.lag", 0)
	require.NoError(t, tr.Close())
	got := m.collect(t)
	for name, want := range map[string]int64{
		"millrace.kafka.deliveries acked":    2,
		"millrace.kafka.deliveries nacked":   2,
		"millrace.kafka.deliveries delayed":  2,
		"millrace.kafka.rebalances assigned": 2,
		"millrace.kafka.rebalances revoked":  2,
	} {
		require.Equal(t, want, got[name], name)
	}
	require.NotContains(t, got, "millrace.kafka.lag", "of partitions that are gone")
}

// TestFlowControl: a partition whose window is full is not read on, while others are, and goes on later.
func TestFlowControl(t *testing.T) {
	t.Parallel()
	c, m, wire := newCluster(t, 2), newMeter(), newFaultNet(nil)
	const n, size = 1500, 20_000 // 30 MB; sarama has 256 records ready besides what we hold
	for i := range n {
		payload := make([]byte, size)
		rand.New(rand.NewSource(int64(i))).Read(payload)
		c.put(0, string(payload))
	}
	config := kafka.Config{Brokers: c.ListenAddrs(), MeterProvider: m.provider, Dial: wire.dial, Consumer: kafka.ConsumerConfig{Prefetch: 10}}
	_, messages := subscribe(t, connect(t, config), c.topic, transport.SubscriberConfig{Consumer: "c", Concurrency: 3})
	held := []*message.Message{next(t, messages), next(t, messages)}
	rest := n - len(held)
	m.eventually(t, "millrace.kafka.paused", 1)
	for i := range 10 { // that many polls
		c.put(1, fmt.Sprint(i))
		for {
			msg := next(t, messages)
			small := len(msg.Payload) < size
			if !small {
				rest--
			}
			msg.Ack()
			if small {
				break
			}
		}
	}
	require.Less(t, wire.read(), n*size/2, "it reads more than it has room for")
	for _, msg := range held {
		msg.Ack()
	}
	for ; rest > 0; rest-- {
		next(t, messages).Ack()
	}
	c.committed(0, n)
	m.eventually(t, "millrace.kafka.paused", 0)
}

// TestFlowControlOfLargeRecords: what a partition holds is bounded in bytes, too, and no fetches fill what sarama has room
// for besides: 256 records.
func TestFlowControlOfLargeRecords(t *testing.T) {
	t.Parallel()
	c, m, wire := newCluster(t, 2), newMeter(), newFaultNet(nil)
	const n, size = 80, 500_000 // 80 MB: put makes the payload the ID, too
	payload := strings.Repeat("x", size)
	for range n {
		c.put(0, payload)
	}
	config := kafka.Config{Brokers: c.ListenAddrs(), MeterProvider: m.provider, Dial: wire.dial, MaxBufferedBytes: 32 << 20}
	_, messages := subscribe(t, connect(t, config), c.topic, transport.SubscriberConfig{Consumer: "c", Concurrency: 2})
	held := next(t, messages)
	m.eventually(t, "millrace.kafka.paused", 1)
	for range 5 { // that many polls
		c.put(1, "small")
		for msg := next(t, messages); ; msg = next(t, messages) {
			msg.Ack()
			if len(msg.Payload) < size {
				break
			}
		}
	}
	require.Less(t, wire.read(), n*size, "it reads more than it has room for")
	held.Ack()
	go func() {
		for msg := range messages {
			msg.Ack()
		}
	}()
	c.committed(0, n)
}
