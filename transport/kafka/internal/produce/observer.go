package produce

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
)

// observer reports published messages to OpenTelemetry. It is safe for concurrent use.
type observer struct {
	messages, batches, failures metric.Int64Counter
	topics                      sync.Map // topic → metric.MeasurementOption, because building one costs more than counting
}

func newObserver(provider metric.MeterProvider) (*observer, error) {
	m := provider.Meter(conn.Scope)
	o := &observer{}
	var errs [3]error
	o.messages, errs[0] = m.Int64Counter("millrace.kafka.produce.messages", metric.WithUnit("{message}"),
		metric.WithDescription("Published messages that the brokers acknowledged."))
	o.batches, errs[1] = m.Int64Counter("millrace.kafka.produce.batches", metric.WithUnit("{batch}"),
		metric.WithDescription("Batches that the brokers acknowledged."))
	o.failures, errs[2] = m.Int64Counter("millrace.kafka.produce.failures", metric.WithUnit("{batch}"),
		metric.WithDescription("Batches whose answer was an error, or did not come."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("make the instruments of millrace.kafka.produce: %w", err)
	}
	return o, nil
}

func (o *observer) of(topic string) metric.MeasurementOption {
	if option, ok := o.topics.Load(topic); ok {
		return option.(metric.MeasurementOption)
	}
	option := metric.WithAttributeSet(attribute.NewSet(attribute.String("messaging.destination.name", topic)))
	o.topics.Store(topic, option)
	return option
}

// acknowledged counts a batch with that many messages.
func (o *observer) acknowledged(ctx context.Context, topic string, messages int) {
	option := o.of(topic)
	o.messages.Add(ctx, int64(messages), option)
	o.batches.Add(ctx, 1, option)
}

func (o *observer) failed(ctx context.Context, topic string) {
	o.failures.Add(ctx, 1, o.of(topic))
}
