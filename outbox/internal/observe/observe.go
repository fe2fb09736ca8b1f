// Package observe reports a relay's metrics and spans to OpenTelemetry.
package observe

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/internal/gauge"
	"github.com/millrace-go/millrace/outbox/internal/landing"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/outbox/internal/wal"
)

// scope names the instruments' and spans' origin.
const scope = "github.com/millrace-go/millrace/outbox"

// Observer has the instruments that the relay updates as it works. It is safe for concurrent use.
type Observer struct {
	meter      metric.Meter
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	database   []attribute.KeyValue // attributes of each measurement

	published, failures, moves, rescans metric.Int64Counter
	batchSize                           metric.Int64Histogram
	latency                             metric.Float64Histogram
}

// topicAttribute is OpenTelemetry's name for a topic: https://opentelemetry.io/docs/specs/semconv/messaging/.
func topicAttribute(topic string) attribute.KeyValue {
	return attribute.String("messaging.destination.name", topic)
}

// with returns the attributes of a measurement.
func (o *Observer) with(attributes ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(append(attributes, o.database...)...))
}

// New creates the instruments. Start adds those that are read at each collection. Each measurement has the attribute millrace.database,
// unless database is "".
func New(meters metric.MeterProvider, tracers trace.TracerProvider, propagator propagation.TextMapPropagator, database string) (*Observer, error) {
	m := meters.Meter(scope)
	o := &Observer{meter: m, tracer: tracers.Tracer(scope), propagator: propagator}
	if database != "" {
		o.database = []attribute.KeyValue{attribute.String("millrace.database", database)}
	}
	var errs [6]error
	o.published, errs[0] = m.Int64Counter("millrace.outbox.published", metric.WithUnit("{event}"),
		metric.WithDescription("Events that the broker acknowledged."))
	o.failures, errs[1] = m.Int64Counter("millrace.outbox.failures", metric.WithUnit("{event}"),
		metric.WithDescription("Failed attempts to publish an event; an outage of the broker counts too."))
	o.moves, errs[2] = m.Int64Counter("millrace.outbox.moved", metric.WithUnit("{event}"),
		metric.WithDescription("Events that became failed events, including those blocked by them."))
	o.rescans, errs[3] = m.Int64Counter("millrace.outbox.surprises", metric.WithUnit("{scan}"),
		metric.WithDescription("Times that a shard was read again from its start, because events appeared below those already read."))
	o.batchSize, errs[4] = m.Int64Histogram("millrace.outbox.batch.size", metric.WithUnit("{event}"),
		metric.WithDescription("Events in one batch."), metric.WithExplicitBucketBoundaries(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000))
	o.latency, errs[5] = m.Float64Histogram("millrace.outbox.latency", metric.WithUnit("s"),
		metric.WithDescription("From the insert of an event, by the server's clock, to the broker's acknowledgement."),
		metric.WithExplicitBucketBoundaries(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800, 3600))
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return o, nil
}

// Status is what a relay reports about itself.
type Status struct {
	Gaps    int
	Shards  []int16 // that it holds; never nil
	Topics  []step.TopicState
	WAL     wal.Status     // zero if Source is Table
	Landing landing.Status // zero if Store is Rows
}

// Start registers the gauges, whose values are read from the relay and its database at each collection, until stop is called. Those of the
// WAL and of landing exist only with Source WAL and Store Log.
func (o *Observer) Start(s *store.Relay, readsWAL, lands bool, status func() Status) (stop func(), err error) {
	gauges := gauge.Of(o.meter)
	pending := gauges.Int("millrace.outbox.pending", "{event}", "Unpublished events of the shards that this relay holds, up to 100,000 of each.")
	failed := gauges.Int("millrace.outbox.failed", "{event}", "Failed events of the shards that this relay holds, by state.")
	gaps := gauges.Int("millrace.outbox.gaps", "{number}", "Sequence numbers below the highest one read that the relay has not seen yet.")
	held := gauges.Int("millrace.outbox.shards", "{shard}", "Shards that this relay holds.")
	oldest := gauges.Float("millrace.outbox.oldest.age", "s", "Age of the oldest unpublished event of each shard that this relay holds; 0 when there is none.")
	topics := gauges.Int("millrace.outbox.topics", "{topic}", "Topics whose events wait in this relay: paused by an operator, failing because the broker takes none, or slow.")
	var lag, reads, falls, spills metric.Int64ObservableGauge
	if readsWAL {
		lag = gauges.Int("millrace.outbox.wal.lag", "By", "Bytes of the write-ahead log that the server keeps for the relays' replication slot.")
		reads = gauges.Int("millrace.outbox.wal.reads", "{relay}", "1 while this relay reads the WAL, 0 while it reads only rows or stands by.")
		falls = gauges.Int("millrace.outbox.wal.falls", "{fall}", "Times that this relay failed to start or continue reading the WAL, and read only the table.")
		spills = gauges.Int("millrace.outbox.wal.spills", "{spill}", "Times that a shard had too many unread rows in the WAL, and was read from the table.")
	}
	var landed, landingLag, lander, cuts metric.Int64ObservableGauge
	var landingAge metric.Float64ObservableGauge
	if lands {
		landed = gauges.Int("millrace.outbox.landing.events", "{event}", "Events of the write-ahead log that this relay has made rows of.")
		landingLag = gauges.Int("millrace.outbox.landing.lag", "By", "Bytes of WAL that the server keeps for the slot of the events in the WAL.")
		landingAge = gauges.Float("millrace.outbox.landing.age", "s", "Time since a relay last recorded how far the events in the WAL are landed, which it does every few seconds; 0 while this relay stands by.")
		lander = gauges.Int("millrace.outbox.landing.leads", "{relay}", "1 while this relay lands the events in the WAL, 0 while it stands by or fails.")
		cuts = gauges.Int("millrace.outbox.landing.cuts", "{cut}", "Times that a part of the WAL was lost, with the events in it. millrace doctor shows the last one.")
	}
	stored := gauge.Ask(func(ctx context.Context) (store.Observed, error) { return s.Observe(ctx, status().Shards) })
	return gauges.Report(func(ctx context.Context, to metric.Observer) error {
		found, err := stored.Answer(ctx)
		now := status()
		to.ObserveInt64(gaps, int64(now.Gaps), o.with())
		to.ObserveInt64(held, int64(len(now.Shards)), o.with())
		for _, t := range now.Topics {
			to.ObserveInt64(topics, 1, o.with(topicAttribute(t.Topic), attribute.String("millrace.state", t.State)))
		}
		for _, s := range found.Shards {
			shard := o.with(attribute.Int("millrace.shard", int(s.Shard)))
			to.ObserveInt64(pending, s.Events, shard)
			to.ObserveFloat64(oldest, max(s.Oldest, 0), shard)
		}
		if readsWAL {
			to.ObserveInt64(lag, now.WAL.Lag, o.with())
			to.ObserveInt64(reads, now.WAL.Reads(), o.with())
			to.ObserveInt64(falls, now.WAL.Falls, o.with())
			to.ObserveInt64(spills, now.WAL.Spills, o.with())
		}
		if lands {
			to.ObserveInt64(landed, now.Landing.Events, o.with())
			to.ObserveInt64(landingLag, now.Landing.Lag, o.with())
			to.ObserveInt64(lander, now.Landing.Leading(), o.with())
			to.ObserveFloat64(landingAge, now.Landing.Age.Seconds(), o.with())
			to.ObserveInt64(cuts, now.Landing.Cuts, o.with())
		}
		for state, n := range found.Failed {
			to.ObserveInt64(failed, n, o.with(attribute.String("millrace.state", state)))
		}
		return err
	})
}

// Settled counts a batch that has been sent.
func (o *Observer) Settled(p step.Report, now time.Time) {
	ctx, attributes := context.Background(), o.with(topicAttribute(p.Topic))
	o.batchSize.Record(ctx, int64(p.Count), attributes)
	if p.Failed > 0 {
		o.failures.Add(ctx, int64(p.Failed), attributes)
	}
	if p.Count == p.Failed {
		return
	}
	o.published.Add(ctx, int64(p.Count-p.Failed), attributes)
	if o.latency.Enabled(ctx) {
		for _, e := range p.Events {
			o.latency.Record(ctx, now.Sub(e.Written).Seconds(), attributes)
		}
	}
}

// Moved counts events that became failed events.
func (o *Observer) Moved(events []step.Aside) {
	for _, e := range events {
		o.moves.Add(context.Background(), 1, o.with(topicAttribute(e.Topic), attribute.String("millrace.state", e.State)))
	}
}

// Surprised counts a shard that is read again from its start.
func (o *Observer) Surprised() { o.rescans.Add(context.Background(), 1, o.with()) }

// maxLinks bounds a span's links, as OpenTelemetry's SDK does by default.
const maxLinks = 128

// Span starts the span of one batch. It links the spans in which the events were published.
func (o *Observer) Span(ctx context.Context, topic string, msgs []*message.Message) (context.Context, func(results []error)) {
	var links []trace.Link
	for _, m := range msgs {
		if len(links) == maxLinks {
			break
		}
		if len(m.Metadata) == 0 {
			continue
		}
		if s := trace.SpanContextFromContext(o.propagator.Extract(context.Background(), propagation.MapCarrier(m.Metadata))); s.IsValid() {
			links = append(links, trace.Link{SpanContext: s, Attributes: []attribute.KeyValue{attribute.String("messaging.message.id", m.UUID)}})
		}
	}
	ctx, span := o.tracer.Start(ctx, "publish "+topic, trace.WithSpanKind(trace.SpanKindProducer), trace.WithLinks(links...), trace.WithAttributes(
		topicAttribute(topic), attribute.String("messaging.operation.name", "publish"), attribute.String("messaging.operation.type", "send"),
		attribute.Int("messaging.batch.message_count", len(msgs))))
	return ctx, func(results []error) {
		for _, err := range results {
			if err != nil {
				span.SetStatus(codes.Error, err.Error())
				break
			}
		}
		span.End()
	}
}
