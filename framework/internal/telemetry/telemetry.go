// Package telemetry makes a service's metrics, traces and log.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// flushTimeout bounds the sending of the last spans and metrics.
const flushTimeout = 5 * time.Second

// Config says where spans and metrics go. The framework's Telemetry documents the fields.
type Config struct {
	Traces         *bool
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
}

// Providers are the telemetry providers of the service's parts.
type Providers struct {
	Meter      metric.MeterProvider
	Tracer     trace.TracerProvider
	Propagator propagation.TextMapPropagator
	Metrics    http.Handler // for Prometheus; nil: metrics go to Config.MeterProvider
	flush      []func(context.Context) error
}

// New makes the providers: metrics that Prometheus scrapes, and spans that go where OpenTelemetry's environment variables say. It
// sets nothing global, so that two services in one process do not interfere.
func New(ctx context.Context, service string, cfg Config) (Providers, error) {
	// No baggage: the outbox would store it with each event, and the broker would refuse an event whose baggage is too long.
	p := Providers{Propagator: propagation.TraceContext{}, Meter: cfg.MeterProvider, Tracer: cfg.TracerProvider}
	origin, err := resource.Merge(resource.Default(), resource.NewSchemaless(attribute.String("service.name", service)))
	if err != nil {
		return p, fmt.Errorf("describe the service for OpenTelemetry: %w", err)
	}
	if p.Meter == nil {
		registry := prometheus.NewRegistry()
		exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
		if err == nil {
			err = errors.Join(registry.Register(collectors.NewGoCollector()), registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})))
		}
		if err != nil {
			return p, fmt.Errorf("make the exporter for Prometheus: %w", err)
		}
		meter := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter), sdkmetric.WithResource(origin))
		p.Meter, p.Metrics = meter, promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
		p.flush = append(p.flush, meter.Shutdown)
	}
	if p.Tracer == nil {
		if p.Tracer = noop.NewTracerProvider(); cfg.traces() {
			exporter, err := otlptracehttp.New(ctx)
			if err != nil {
				return p, fmt.Errorf("make the exporter of traces: see the environment's OTEL_EXPORTER_OTLP_*: %w", err)
			}
			tracer := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(origin))
			p.Tracer = tracer
			p.flush = append(p.flush, tracer.Shutdown)
		}
	}
	return p, nil
}

// Requests adds metrics and traces to h, except for the paths of probes, which would fill a tracing backend with useless traces.
func (p Providers) Requests(address string, h http.Handler, probes ...string) http.Handler {
	isBusiness := func(r *http.Request) bool { return !slices.Contains(probes, r.URL.Path) }
	// Without a server name the metrics have one series for each Host header that clients send.
	return otelhttp.NewHandler(h, "http", otelhttp.WithServerName(address), otelhttp.WithMeterProvider(p.Meter), otelhttp.WithTracerProvider(p.Tracer),
		otelhttp.WithPropagators(p.Propagator), otelhttp.WithFilter(isBusiness), otelhttp.WithSpanNameFormatter(spanName))
}

// traces reports whether spans are exported.
func (c Config) traces() bool {
	if c.Traces != nil {
		return *c.Traces
	}
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT")+os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// spanName follows the conventions for HTTP: it uses the route, because there is no limit to the number of paths.
func spanName(_ string, r *http.Request) string {
	if r.Pattern != "" {
		return r.Pattern
	}
	return r.Method
}

// OnClose calls stop when the providers are closed.
func (p *Providers) OnClose(stop func()) {
	p.flush = append(p.flush, func(context.Context) error { stop(); return nil })
}

// Close sends the remaining spans and metrics.
func (p Providers) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	var errs []error
	for _, flush := range p.flush {
		errs = append(errs, flush(ctx))
	}
	return errors.Join(errs...)
}
