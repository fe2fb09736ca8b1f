package group

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/IBM/sarama"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/lane"
)

// outcomeDelayed is an outcome beside those of lane.Outcome: a nack whose handler asked for a delay.
const outcomeDelayed = "delayed"

// What a rebalance did with a partition, as metrics name it.
const (
	rebalanceAssigned = "assigned"
	rebalanceRevoked  = "revoked"
)

// observer reports to OpenTelemetry what happens to the messages of one subscription. It is safe for concurrent use.
type observer struct {
	consumer                                              string
	deliveries, deadLetters, failures, rebalances, resets metric.Int64Counter

	lag, paused, buffered metric.Int64ObservableGauge
	registration          metric.Registration

	mu     sync.Mutex
	claims map[*partitionConsumer]claimObserver
	topics map[*topicObserver]bool // topics that had claims
}

// topicObserver is an observer for one topic. Its attributes are built once, because building them costs more than counting.
type topicObserver struct {
	*observer
	common   []attribute.KeyValue
	all      metric.MeasurementOption
	outcomes map[string][]metric.AddOption // as they are passed, without an allocation
}

type claimObserver struct {
	claim      sarama.ConsumerGroupClaim
	attributes metric.MeasurementOption
}

func (o *observer) of(topic string) *topicObserver {
	t := &topicObserver{
		observer: o,
		common: []attribute.KeyValue{
			attribute.String("messaging.destination.name", topic), attribute.String("millrace.consumer", o.consumer),
		},
		outcomes: map[string][]metric.AddOption{},
	}
	t.all = t.attributes()
	for _, name := range []string{lane.Acked.String(), lane.Nacked.String(), lane.Abandoned.String(), outcomeDelayed, rebalanceAssigned, rebalanceRevoked, resetExpired, resetTruncated} {
		t.outcomes[name] = []metric.AddOption{t.attributes(attribute.String("millrace.outcome", name))}
	}
	return t
}

func newObserver(provider metric.MeterProvider, consumer string) (*observer, error) {
	o := &observer{consumer: consumer, claims: map[*partitionConsumer]claimObserver{}, topics: map[*topicObserver]bool{}}
	m := provider.Meter(conn.Scope)
	var errs [9]error
	o.deliveries, errs[0] = m.Int64Counter("millrace.kafka.deliveries", metric.WithUnit("{message}"),
		metric.WithDescription("Deliveries of messages to handlers, by what became of them."))
	o.deadLetters, errs[1] = m.Int64Counter("millrace.kafka.dead_letters", metric.WithUnit("{message}"),
		metric.WithDescription("Messages that were sent to a dead-letter topic."))
	o.failures, errs[2] = m.Int64Counter("millrace.kafka.consumer.failures", metric.WithUnit("{failure}"),
		metric.WithDescription("Failed fetches, commits, heartbeats and joins; they are tried again."))
	o.rebalances, errs[3] = m.Int64Counter("millrace.kafka.rebalances", metric.WithUnit("{partition}"),
		metric.WithDescription("Partitions that came to this process, or that it lost."))
	o.resets, errs[7] = m.Int64Counter("millrace.kafka.consumer.resets", metric.WithUnit("{partition}"),
		metric.WithDescription("Partitions that are read from their beginning, because the group's offset is in the log no more."))
	o.lag, errs[4] = m.Int64ObservableGauge("millrace.kafka.lag", metric.WithUnit("{message}"),
		metric.WithDescription("Offsets of a partition of this process that are not done."))
	o.paused, errs[5] = m.Int64ObservableGauge("millrace.kafka.paused", metric.WithUnit("{partition}"),
		metric.WithDescription("Partitions of this process that are not read on, because handlers have enough of them."))
	o.buffered, errs[8] = m.Int64ObservableGauge("millrace.kafka.buffered", metric.WithUnit("By"),
		metric.WithDescription("Bytes of the messages that this process has read and not finished."))
	if errs[4] == nil && errs[5] == nil && errs[8] == nil {
		o.registration, errs[6] = m.RegisterCallback(o.observe, o.lag, o.paused, o.buffered)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("make the instruments of millrace.kafka: %w", err)
	}
	return o, nil
}

// stop ends the observation of partitions.
func (o *observer) stop() { _ = o.registration.Unregister() } // it cannot fail

func (o *topicObserver) attributes(more ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(append(more, o.common...)...))
}

func (o *topicObserver) delivered(ctx context.Context, outcome lane.Outcome, wished bool) {
	name := outcome.String()
	if outcome == lane.Nacked && wished {
		name = outcomeDelayed
	}
	o.deliveries.Add(ctx, 1, o.outcomes[name]...)
}

func (o *topicObserver) deadLettered(ctx context.Context) { o.deadLetters.Add(ctx, 1, o.all) }
func (o *topicObserver) failed(ctx context.Context)       { o.failures.Add(ctx, 1, o.all) }

func (o *topicObserver) reset(ctx context.Context, reason string) {
	o.resets.Add(ctx, 1, o.outcomes[reason]...)
}

func (o *topicObserver) assigned(p *partitionConsumer, claim sarama.ConsumerGroupClaim) {
	o.rebalances.Add(p.messages, 1, o.outcomes[rebalanceAssigned]...)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.topics[o] = true
	o.claims[p] = claimObserver{claim, o.attributes(attribute.String("messaging.destination.partition.id", strconv.Itoa(int(p.number))))}
}

func (o *topicObserver) revoked(p *partitionConsumer) {
	o.rebalances.Add(p.messages, 1, o.outcomes[rebalanceRevoked]...)
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.claims, p)
}

func (o *observer) observe(_ context.Context, to metric.Observer) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	paused, buffered := map[*topicObserver]int64{}, map[*topicObserver]int64{}
	for p, c := range o.claims {
		buffered[p.observer] += p.buffered.Load()
		if p.paused.Load() {
			paused[p.observer]++
		}
		if next := p.next.Load(); next >= 0 { // if negative, the group has no offset yet and no record came
			to.ObserveInt64(o.lag, max(c.claim.HighWaterMarkOffset()-next, 0), c.attributes)
		}
	}
	for topic := range o.topics {
		to.ObserveInt64(o.paused, paused[topic], topic.all)
		to.ObserveInt64(o.buffered, buffered[topic], topic.all)
	}
	return nil
}
