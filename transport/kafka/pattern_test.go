package kafka_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// TestPattern: a subscription to a pattern gets the messages of all topics that match it, also of one that is created later,
// and each message, dead letter and figure names its topic. What it writes to dead-letter topics does not come back.
func TestPattern(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB) []string{
		"Apache Kafka": brokers,
		"fake":         func(t testing.TB) []string { return fake(t, kfake.NumBrokers(2)).ListenAddrs() },
	} {
		for _, delivery := range []kafka.Delivery{kafka.AtLeastOnce, kafka.Transactional} {
			t.Run(name+" "+delivery.String(), func(t *testing.T) {
				t.Parallel()
				testPattern(t, start(t), delivery)
			})
		}
	}
}

func testPattern(t *testing.T, brokers []string, delivery kafka.Delivery) {
	m, prefix, consumer := newMeter(), devtest.Topic(t), consumerName(t)
	ownDead := prefix + ".dead"
	tr := connect(t, kafka.Config{
		Brokers: brokers, Delivery: delivery, MeterProvider: m.provider,
		Topics:    kafka.Topics{Partitions: 2},
		Consumers: map[string]kafka.ConsumerConfig{"other": {DeadLetter: kafka.DeadLetter{Topic: ownDead}}},
	})
	plain, err := tr.PlainPublisher()
	require.NoError(t, err)
	publish := func(topic, payload string) { require.NoError(t, plain.Publish(topic, newMessage("key", payload))) }
	publish(prefix+".a", "1")
	publish(prefix+".b", "2")
	publish(prefix+"-other", "does not match")
	publish(ownDead, "a dead letter")

	pattern := "^" + regexp.QuoteMeta(prefix) + `\.`
	_, messages := subscribe(t, tr, pattern, transport.SubscriberConfig{Consumer: consumer, Concurrency: 10, Ordered: true})
	publisher, err := tr.Publisher()
	require.NoError(t, err)
	got := map[string]string{}
	take := func() *message.Message {
		msg := next(t, messages)
		topic := transport.TopicOf(msg.Context(), pattern)
		require.Equal(t, topic, transport.OriginFrom(msg.Context())["topic"])
		got[strings.TrimPrefix(topic, prefix)] = string(msg.Payload)
		return msg
	}
	for range 2 {
		msg := take()
		if string(msg.Payload) == "2" {
			transport.DeliveryFrom(msg.Context()).Reject(errors.New("not JSON"))
			msg.Nack()
			continue
		}
		output := message.NewMessageWithContext(msg.Context(), msg.UUID, msg.Payload)
		require.NoError(t, publisher.Publish(prefix+"-out", output))
		msg.Ack()
	}

	deadTopic := transport.DeadLetterTopic(prefix+".b", consumer)
	dead := read(t, brokers, deadTopic, 1)[0]
	require.Equal(t, "2", string(dead.Value))
	for _, header := range dead.Headers {
		if header.Key == kafka.DeadTopicMetadata {
			assert.Equal(t, prefix+".b", string(header.Value))
		}
	}
	require.Len(t, read(t, brokers, prefix+"-out", 1), 1)
	require.Eventually(t, func() bool {
		i, err := tr.Inspect(t.Context(), pattern, consumer)
		return err == nil && i.Topic && i.Consumer && i.Lag == 0
	}, wait, 10*tick, "nothing is left")

	publish(prefix+".new", "3") // its session begins anew, and dead-letter topics match by their names
	take().Ack()
	publish(prefix+".a", "4")
	take().Ack()
	require.Equal(t, map[string]string{".a": "4", ".b": "2", ".new": "3"}, got)

	require.Subset(t, m.topics(t, "millrace.kafka.deliveries"), []string{prefix + ".a", prefix + ".b", prefix + ".new"})
	require.Equal(t, []string{prefix + ".b"}, m.topics(t, "millrace.kafka.dead_letters"))
	require.NotContains(t, m.topics(t, "millrace.kafka.lag"), pattern)
}

// topics returns the topics that a metric tells of.
func (m *meter) topics(t testing.TB, name string) (topics []string) {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, m.reader.Collect(t.Context(), &all))
	seen := map[string]bool{}
	add := func(points []metricdata.DataPoint[int64]) {
		for _, p := range points {
			topic, _ := p.Attributes.Value("messaging.destination.name")
			if !seen[topic.AsString()] {
				seen[topic.AsString()] = true
				topics = append(topics, topic.AsString())
			}
		}
	}
	for _, scope := range all.ScopeMetrics {
		for _, metric := range scope.Metrics {
			if metric.Name != name {
				continue
			}
			switch data := metric.Data.(type) {
			case metricdata.Sum[int64]:
				add(data.DataPoints)
			case metricdata.Gauge[int64]:
				add(data.DataPoints)
			}
		}
	}
	return topics
}

// TestPatternNewest: a new group begins at the ends of all topics that match, and at the beginning of those that are created
// later. A member that joins it gets partitions of each topic.
func TestPatternNewest(t *testing.T) {
	t.Parallel()
	cluster := fake(t, kfake.SeedTopics(2, "orders.a", "orders.b"))
	config := kafka.Config{Brokers: cluster.ListenAddrs(), Consumer: kafka.ConsumerConfig{StartAt: kafka.Newest}}
	tr := connect(t, config)
	p := batcher(t, tr)
	require.NoError(t, p.Publish("orders.a", newMessage("", "before")))
	s := transport.SubscriberConfig{Consumer: "c", Concurrency: 10}
	_, first := subscribe(t, tr, "^orders\\..*", s)
	require.NoError(t, p.Publish("orders.a", newMessage("", "a")))
	require.NoError(t, p.Publish("orders.b", newMessage("", "b")))
	_, second := subscribe(t, connect(t, config), "^orders\\..*", s)
	require.NoError(t, p.Publish("orders.new", newMessage("", "new")))
	got := map[string]bool{}
	for len(got) < 3 {
		var msg *message.Message
		select {
		case msg = <-first:
		case msg = <-second:
		case <-t.Context().Done():
		}
		got[string(msg.Payload)] = true
		msg.Ack()
	}
	require.Equal(t, map[string]bool{"a": true, "b": true, "new": true}, got)
}

// TestPatternWithoutTopics: a pattern that no topic matches yet waits for one, and one that is deleted leaves the others alone.
func TestPatternWithoutTopics(t *testing.T) {
	t.Parallel()
	cluster := fake(t)
	tr := connect(t, kafka.Config{Brokers: cluster.ListenAddrs(), Consumer: kafka.ConsumerConfig{StartAt: kafka.Newest}})
	_, messages := subscribe(t, tr, "^(orders|bills)$", transport.SubscriberConfig{Consumer: "c", Concurrency: 10})
	p := batcher(t, tr)
	require.NoError(t, p.Publish("orders", newMessage("", "1")))
	require.NoError(t, p.Publish("bills", newMessage("", "1")))
	for range 2 {
		next(t, messages).Ack()
	}
	require.NoError(t, cluster.DeleteTopic("bills"))
	require.NoError(t, p.Publish("orders", newMessage("", "2")))
	msg := next(t, messages)
	require.Equal(t, "2", string(msg.Payload))
	msg.Ack()
}

// TestPatternRefused: what is no regular expression is an error that says what to write instead.
func TestPatternRefused(t *testing.T) {
	t.Parallel()
	tr := connect(t, kafka.Config{Brokers: fake(t).ListenAddrs()})
	s, err := tr.Subscriber(transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, err)
	_, err = s.Subscribe(t.Context(), "^orders(")
	require.ErrorContains(t, err, `topic "^orders(" begins with ^ and is no regular expression`)
	require.ErrorContains(t, err, "pkg.go.dev/regexp/syntax")
	require.ErrorContains(t, s.(message.SubscribeInitializer).SubscribeInitialize("^orders("), "is no regular expression")
	require.ErrorIs(t, batcher(t, tr).Publish("^orders", newMessage("", "1")), transport.ErrLimit)
}
