package txn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/ledger"
)

// observer tells OpenTelemetry what becomes of the transactions of one member. It is safe for concurrent use.
type observer struct {
	transactions, fences, recoveries metric.Int64Counter
	messages                         metric.Int64Histogram
	duration                         metric.Float64Histogram
	tracer                           trace.Tracer
	common                           []attribute.KeyValue
	id                               string
}

func newObserver(c Config, id string) (*observer, error) {
	o := &observer{
		tracer: c.TracerProvider.Tracer(conn.Scope),
		id:     id,
		common: []attribute.KeyValue{
			attribute.String("messaging.system", "kafka"),
			attribute.String("messaging.destination.name", c.Topic),
			attribute.String("messaging.consumer.group.name", c.Consumer),
		},
	}
	m := c.MeterProvider.Meter(conn.Scope)
	var errs [5]error
	o.transactions, errs[0] = m.Int64Counter("millrace.kafka.transactions", metric.WithUnit("{transaction}"),
		metric.WithDescription("Transactions, by how they ended; a failed one is tried again."))
	o.fences, errs[1] = m.Int64Counter("millrace.kafka.transaction.fences", metric.WithUnit("{epoch}"),
		metric.WithDescription("Epochs that the producer needed after failures."))
	o.recoveries, errs[2] = m.Int64Counter("millrace.kafka.transaction.recoveries", metric.WithUnit("{transaction}"),
		metric.WithDescription("Failed transactions, by what the group's offsets told of them."))
	o.messages, errs[3] = m.Int64Histogram("millrace.kafka.transaction.messages", metric.WithUnit("{message}"),
		metric.WithExplicitBucketBoundaries(1, 3, 10, 30, 100, 300, 1000, 3000),
		metric.WithDescription("Consumed messages in a transaction."))
	o.duration, errs[4] = m.Float64Histogram("millrace.kafka.transaction.duration", metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.001, .003, .01, .03, .1, .3, 1, 3, 10),
		metric.WithDescription("How long transactions took."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("make the instruments of millrace.kafka: %w", err)
	}
	return o, nil
}

// begin observes a transaction until end is called.
func (o *observer) begin(ctx context.Context, batch []*ledger.Unit) (_ context.Context, end func(ledger.Outcome, error)) {
	began, messages := time.Now(), 0
	for _, u := range batch {
		if !u.Mark {
			messages++
		}
	}
	ctx, span := o.tracer.Start(ctx, "commit transaction", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(o.common...),
		trace.WithAttributes(attribute.String("millrace.kafka.transactional_id", o.id), attribute.Int("messaging.batch.message_count", messages)))
	return ctx, func(outcome ledger.Outcome, err error) {
		defer span.End()
		if err != nil {
			span.RecordError(err)
			span.SetStatus(codes.Error, outcome.String())
		}
		with := o.with(outcome.String())
		o.transactions.Add(ctx, 1, with)
		o.duration.Record(ctx, time.Since(began).Seconds(), with)
		o.messages.Record(ctx, int64(messages), with)
	}
}

func (o *observer) fenced(ctx context.Context, err error) {
	if err == nil {
		o.fences.Add(ctx, 1, metric.WithAttributes(o.common...))
	}
}

func (o *observer) resolved(ctx context.Context, verdict ledger.Verdict) {
	o.recoveries.Add(ctx, 1, o.with(verdict.String()))
}

func (o *observer) with(outcome string) metric.MeasurementOption {
	return metric.WithAttributes(append([]attribute.KeyValue{attribute.String("millrace.outcome", outcome)}, o.common...)...)
}
