// Package telemetry reports to OpenTelemetry what happens to the events.
package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/internal/tally"
	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/transport"
)

// scope is the instrumentation scope.
const scope = "github.com/millrace-go/millrace/middleware/claim"

// Outcomes of a delivery, as the metrics name them.
const (
	OutcomeCompleted = "completed"
	OutcomeDuplicate = "duplicate"
	OutcomeContended = "contended"
	OutcomeFailed    = "failed" // a failed attempt; the event is retried
	OutcomeBlocked   = "blocked"
	OutcomeDead      = "dead"
	OutcomeIgnored   = "ignored"
	OutcomeLimited   = "limited" // it waits for a slot of its key
	OutcomePaused    = "paused"  // the consumer is paused
	OutcomeFull      = "full"    // MaxBlocked events of its key are blocked
)

// Config configures an Observer. Every field is required.
type Config struct {
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
	Propagator     propagation.TextMapPropagator
}

// Observer reports to OpenTelemetry what happens to the events. It is safe for concurrent use.
type Observer struct {
	meter              metric.Meter
	tracer             trace.Tracer
	propagator         propagation.TextMapPropagator
	events             metric.Int64Counter
	paused             metric.Int64Gauge
	critical, duration metric.Float64Histogram

	tally tally.Tally[counted]

	sets sync.Map // of attributes by [2]string{consumer, outcome}: creating a set costs more than counting
}

// New returns an Observer with its instruments.
func New(cfg Config) (*Observer, error) {
	m := cfg.MeterProvider.Meter(scope)
	o := &Observer{meter: m, tracer: cfg.TracerProvider.Tracer(scope), propagator: cfg.Propagator}
	var errs [4]error
	seconds := metric.WithExplicitBucketBoundaries(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800, 3600)
	o.events, errs[0] = m.Int64Counter("millrace.claim.events", metric.WithUnit("{event}"),
		metric.WithDescription("Deliveries of events to a consumer, by what became of them."))
	o.critical, errs[1] = m.Float64Histogram("millrace.claim.critical_time", metric.WithUnit("s"), seconds,
		metric.WithDescription("From the moment when the event's UUIDv7 was minted, or a delayed event was due, to its completion, by this machine's clock."))
	o.duration, errs[2] = m.Float64Histogram("millrace.claim.duration", metric.WithUnit("s"), seconds,
		metric.WithDescription("Of a completed claim: the handler's run with its transaction."))
	o.paused, errs[3] = m.Int64Gauge("millrace.claim.paused", metric.WithUnit("{consumer}"),
		metric.WithDescription("1 while the consumer's breaker has paused it in this process, else 0."))
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return o, nil
}

func (o *Observer) attributes(consumer, outcome string) metric.MeasurementOption {
	key := [2]string{consumer, outcome}
	if set, ok := o.sets.Load(key); ok {
		return set.(metric.MeasurementOption)
	}
	all := []attribute.KeyValue{attribute.String("millrace.consumer", consumer)}
	if outcome != "" {
		all = append(all, attribute.String("millrace.outcome", outcome))
	}
	set := metric.WithAttributeSet(attribute.NewSet(all...))
	o.sets.Store(key, set)
	return set
}

// Begin starts the span of one delivery. Use the returned context for the handler and for Count.
func (o *Observer) Begin(ctx context.Context, msg *message.Message, consumer string) (context.Context, trace.Span) {
	kind := trace.SpanKindInternal // inside the transport's span
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx, kind = o.propagator.Extract(ctx, propagation.MapCarrier(msg.Metadata)), trace.SpanKindConsumer
	}
	ctx, span := o.tracer.Start(ctx, "claim", trace.WithSpanKind(kind))
	if span.IsRecording() {
		span.SetAttributes(attribute.String("messaging.message.id", msg.UUID), attribute.String("millrace.consumer", consumer),
			attribute.String("messaging.destination.name", transport.TopicOf(ctx, message.SubscribeTopicFromCtx(ctx))))
	}
	return ctx, span
}

// End ends the span of a delivery. An error is recorded in it.
func End(span trace.Span, err error) {
	if err != nil {
		Spoil(span, err)
	}
	span.End()
}

// Spoil records the error in the span.
func Spoil(span trace.Span, err error) {
	span.RecordError(err)
	span.SetStatus(codes.Error, err.Error())
}

// Kept tells of an event whose failure the table keeps, so that its message is acked: in the log, and in the span of ctx, because the router
// sees success.
func Kept(ctx context.Context, logger *slog.Logger, key store.Key, v store.Verdict, cause error) {
	Spoil(trace.SpanFromContext(ctx), cause)
	attrs := []slog.Attr{
		slog.String("event_id", key.EventID), slog.String("consumer", key.Consumer), slog.String("reason", v.Reason),
		slog.Int("attempts", v.Attempts), slog.Any("error", cause),
	}
	switch v.State {
	case store.StateDead:
		logger.LogAttrs(ctx, slog.LevelError, "event is a dead letter", attrs...)
	case store.StateIgnored:
		logger.LogAttrs(ctx, slog.LevelInfo, "event failed with an error that a rule ignores: it counts as processed", attrs...)
	default:
		logger.LogAttrs(ctx, slog.LevelWarn, "event failed and will be tried again", append(attrs, slog.Duration("retry_in", v.Delay))...)
	}
}

// Full logs that as many events as most wait behind one of their key that failed.
func Full(ctx context.Context, logger *slog.Logger, key store.Key, most int) {
	logger.WarnContext(ctx, "key is full: as many events as MaxBlocked allows wait behind one that failed, so the broker keeps the next ones. Replay or discard the first event of the key",
		"consumer", key.Consumer, "max_blocked", most, "event_id", key.EventID)
}

// Lost logs that an event is lost, because it was acked early and could not be kept.
func Lost(ctx context.Context, logger *slog.Logger, key store.Key, err error) {
	logger.ErrorContext(ctx, "event is lost: its message was acked before its claim committed, and nobody redelivers it. Remove InstantAck, or whatever else acks",
		"event_id", key.EventID, "consumer", key.Consumer, "error", err)
}

// Count counts one delivery. Its span is in ctx.
func (o *Observer) Count(ctx context.Context, consumer, outcome string) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(attribute.String("millrace.outcome", outcome))
	}
	o.count(consumer, outcome)
	if o.events.Enabled(ctx) {
		o.events.Add(ctx, 1, o.attributes(consumer, outcome))
	}
}

// Pause reports whether the consumer is paused.
func (o *Observer) Pause(consumer string, is bool) {
	var value int64
	if is {
		value = 1
	}
	o.paused.Record(context.Background(), value, o.attributes(consumer, ""))
}

// Completed reports a claim that began at the given time and has just been committed.
func (o *Observer) Completed(ctx context.Context, key store.Key, began time.Time) {
	o.Count(ctx, key.Consumer, OutcomeCompleted)
	took := time.Since(began)
	o.tally.Add(key.Consumer, counted{busy: took, longest: took})
	if !o.duration.Enabled(ctx) && !o.critical.Enabled(ctx) {
		return
	}
	now, consumer := began.Add(took), o.attributes(key.Consumer, "")
	o.duration.Record(ctx, took.Seconds(), consumer)
	if minted, ok := key.Minted(); ok {
		o.critical.Record(ctx, max(now.Sub(minted), 0).Seconds(), consumer) // clocks differ
	}
}
