package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/IBM/sarama"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// scope names the instruments' origin.
const scope = "github.com/millrace-go/millrace/transport/kafka"

// What became of a delivery, as the metrics call it; those of outcome, and the nack whose handler asked for a delay.
const outcomeDelayed = "delayed"

var outcomeNames = [...]string{acked: "acked", nacked: "nacked", abandoned: "abandoned"}

// What a rebalance did with a partition, as the metrics call it.
const (
	rebalanceAssigned = "assigned"
	rebalanceRevoked  = "revoked"
)

// groupObserver tells OpenTelemetry what becomes of the messages of one subscription. It is safe for concurrent use.
type groupObserver struct {
	deliveries, deadLetters, failures, rebalances metric.Int64Counter

	// Attributes are made once, because making them costs more than counting.
	common   []attribute.KeyValue
	all      metric.MeasurementOption
	outcomes map[string]metric.MeasurementOption

	lag, paused  metric.Int64ObservableGauge
	registration metric.Registration

	mu     sync.Mutex
	claims map[*intake]claimObserver
}

type claimObserver struct {
	claim      sarama.ConsumerGroupClaim
	attributes metric.MeasurementOption
}

func newGroupObserver(provider metric.MeterProvider, topic, consumer string) (*groupObserver, error) {
	o := &groupObserver{
		common: []attribute.KeyValue{
			attribute.String("messaging.destination.name", topic), attribute.String("millrace.consumer", consumer),
		},
		outcomes: map[string]metric.MeasurementOption{},
		claims:   map[*intake]claimObserver{},
	}
	o.all = o.attributes()
	for _, name := range append(outcomeNames[:], outcomeDelayed, rebalanceAssigned, rebalanceRevoked) {
		o.outcomes[name] = o.attributes(attribute.String("millrace.outcome", name))
	}
	m := provider.Meter(scope)
	var errs [7]error
	o.deliveries, errs[0] = m.Int64Counter("millrace.kafka.deliveries", metric.WithUnit("{message}"),
		metric.WithDescription("Deliveries of messages to handlers, by what became of them."))
	o.deadLetters, errs[1] = m.Int64Counter("millrace.kafka.dead_letters", metric.WithUnit("{message}"),
		metric.WithDescription("Messages that were sent to a dead-letter topic."))
	o.failures, errs[2] = m.Int64Counter("millrace.kafka.consumer.failures", metric.WithUnit("{failure}"),
		metric.WithDescription("Failed fetches, commits, heartbeats and joins; they are tried again."))
	o.rebalances, errs[3] = m.Int64Counter("millrace.kafka.rebalances", metric.WithUnit("{partition}"),
		metric.WithDescription("Partitions that came to this process, or that it lost."))
	o.lag, errs[4] = m.Int64ObservableGauge("millrace.kafka.lag", metric.WithUnit("{message}"),
		metric.WithDescription("Offsets of a partition of this process that are not done, a transaction's markers included."))
	o.paused, errs[5] = m.Int64ObservableGauge("millrace.kafka.paused", metric.WithUnit("{partition}"),
		metric.WithDescription("Partitions of this process that are not read on, because handlers have enough of them."))
	if errs[4] == nil && errs[5] == nil {
		o.registration, errs[6] = m.RegisterCallback(o.observe, o.lag, o.paused)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("make the instruments of millrace.kafka: %w", err)
	}
	return o, nil
}

// stop ends the observation of partitions.
func (o *groupObserver) stop() { _ = o.registration.Unregister() } // it has no reason to fail

func (o *groupObserver) attributes(more ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(append(more, o.common...)...))
}

func (o *groupObserver) delivered(ctx context.Context, outcome outcome, wished bool) {
	name := outcomeNames[outcome]
	if outcome == nacked && wished {
		name = outcomeDelayed
	}
	o.deliveries.Add(ctx, 1, o.outcomes[name])
}

func (o *groupObserver) buried(ctx context.Context) { o.deadLetters.Add(ctx, 1, o.all) }
func (o *groupObserver) failed(ctx context.Context) { o.failures.Add(ctx, 1, o.all) }

func (o *groupObserver) assigned(in *intake, claim sarama.ConsumerGroupClaim) {
	o.rebalances.Add(in.messages, 1, o.outcomes[rebalanceAssigned])
	o.mu.Lock()
	defer o.mu.Unlock()
	o.claims[in] = claimObserver{claim, o.attributes(attribute.Int("messaging.destination.partition.id", int(in.number)))}
}

func (o *groupObserver) revoked(in *intake) {
	o.rebalances.Add(in.messages, 1, o.outcomes[rebalanceRevoked])
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.claims, in)
}

func (o *groupObserver) observe(_ context.Context, to metric.Observer) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	paused := 0
	for in, c := range o.claims {
		if in.paused.Load() {
			paused++
		}
		if next := in.next.Load(); next >= 0 { // below: the group has no offset yet, and nothing came
			to.ObserveInt64(o.lag, max(c.claim.HighWaterMarkOffset()-next, 0), c.attributes)
		}
	}
	to.ObserveInt64(o.paused, int64(paused), o.all)
	return nil
}
