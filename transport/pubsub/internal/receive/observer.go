package receive

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/millrace-go/millrace/transport/pubsub/internal/conn"
)

// What can be refused, as logs and metrics call it.
const (
	opAck  = "ack"
	opNack = "nack"
)

// delayed is what the metrics call a nack whose handler asked for a delay.
const delayed = int(Abandoned) + 1

// outcomeNames is what became of a delivery, as the metrics call it.
var outcomeNames = [...]string{Acked: "acked", Nacked: "nacked", Undelivered: "undelivered", Abandoned: "abandoned", delayed: "delayed"}

// Observer tells OpenTelemetry what becomes of the messages. It is safe for concurrent use.
type Observer struct {
	deliveries, retries, failures, deadLetters metric.Int64Counter
	held                                       metric.Int64UpDownCounter
}

// NewObserver makes the instruments.
func NewObserver(provider metric.MeterProvider) (*Observer, error) {
	m := provider.Meter(conn.Scope)
	o := &Observer{}
	var errs [5]error
	o.deliveries, errs[0] = m.Int64Counter("millrace.pubsub.deliveries", metric.WithUnit("{message}"),
		metric.WithDescription("Deliveries of messages to handlers, by what became of them."))
	o.retries, errs[1] = m.Int64Counter("millrace.pubsub.retries", metric.WithUnit("{message}"),
		metric.WithDescription("Nacked messages that were delivered again from within the process, without Pub/Sub's knowledge."))
	o.failures, errs[2] = m.Int64Counter("millrace.pubsub.ack.failures", metric.WithUnit("{message}"),
		metric.WithDescription("Acks and nacks that Pub/Sub refused; only exactly-once delivery tells."))
	o.deadLetters, errs[3] = m.Int64Counter("millrace.pubsub.dead_letters", metric.WithUnit("{message}"),
		metric.WithDescription("Messages that this process, not Pub/Sub, sent to a dead-letter topic."))
	o.held, errs[4] = m.Int64UpDownCounter("millrace.pubsub.held", metric.WithUnit("{message}"),
		metric.WithDescription("Nacked messages that wait for their retry and take room of Prefetch."))
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return o, nil
}

// subscriptionObserver is Observer for one consumer of one topic. Its attributes are made once, because making them
// costs more than counting.
type subscriptionObserver struct {
	*Observer
	all      metric.MeasurementOption
	outcomes [len(outcomeNames)][]metric.AddOption // as they are handed over, which costs no allocation
	ops      map[string]metric.MeasurementOption
}

func (o *Observer) subscription(topic, consumer string) *subscriptionObserver {
	attributes := func(more ...attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(append(more,
			attribute.String("messaging.destination.name", topic), attribute.String("millrace.consumer", consumer))...))
	}
	s := &subscriptionObserver{Observer: o, all: attributes(), ops: map[string]metric.MeasurementOption{}}
	for o, name := range outcomeNames {
		s.outcomes[o] = []metric.AddOption{attributes(attribute.String("millrace.outcome", name))}
	}
	for _, op := range []string{opAck, opNack} {
		s.ops[op] = attributes(attribute.String("messaging.operation.name", op))
	}
	return s
}

func (s *subscriptionObserver) delivered(ctx context.Context, o Outcome, asked bool) {
	name := int(o)
	if o == Nacked && asked {
		name = delayed
	}
	s.deliveries.Add(ctx, 1, s.outcomes[name]...)
}

func (s *subscriptionObserver) dead(ctx context.Context)           { s.deadLetters.Add(ctx, 1, s.all) }
func (s *subscriptionObserver) holds(ctx context.Context, n int64) { s.held.Add(ctx, n, s.all) }
func (s *subscriptionObserver) refused(ctx context.Context, op string) {
	s.failures.Add(ctx, 1, s.ops[op])
}
