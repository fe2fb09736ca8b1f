package framework

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// flushTimeout bounds the sending of the last spans.
const flushTimeout = 5 * time.Second

// newProviders makes what the service's parts are observed by: metrics for Prometheus to fetch, and spans that go where
// OpenTelemetry's environment says. Nothing global is set: two services in one process do not meet.
func newProviders(ctx context.Context, service string, cfg Telemetry) (providers, error) {
	// No baggage: what a client sends would be stored with each event, and one that is longer than what the broker takes
	// would have the event refused.
	p := providers{propagator: propagation.TraceContext{}, meter: cfg.MeterProvider, tracer: cfg.TracerProvider}
	origin, err := resource.Merge(resource.Default(), resource.NewSchemaless(attribute.String("service.name", service)))
	if err != nil {
		return p, fmt.Errorf("describe the service for OpenTelemetry: %w", err)
	}
	if p.meter == nil {
		registry := prometheus.NewRegistry()
		exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
		if err == nil {
			err = errors.Join(registry.Register(collectors.NewGoCollector()), registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})))
		}
		if err != nil {
			return p, fmt.Errorf("make the exporter for Prometheus: %w", err)
		}
		meter := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter), sdkmetric.WithResource(origin))
		p.meter, p.metrics = meter, promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
		p.flush = append(p.flush, meter.Shutdown)
	}
	if p.tracer == nil {
		if p.tracer = noop.NewTracerProvider(); cfg.traces() {
			exporter, err := otlptracehttp.New(ctx)
			if err != nil {
				return p, fmt.Errorf("make the exporter of traces: see the environment's OTEL_EXPORTER_OTLP_*: %w", err)
			}
			tracer := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(origin))
			p.tracer = tracer
			p.flush = append(p.flush, tracer.Shutdown)
		}
	}
	p.requests = func(address string, h http.Handler) http.Handler {
		// Without a name the metrics have one series for each Host that clients think of.
		return otelhttp.NewHandler(h, "http", otelhttp.WithServerName(address), otelhttp.WithMeterProvider(p.meter), otelhttp.WithTracerProvider(p.tracer),
			otelhttp.WithPropagators(p.propagator), otelhttp.WithFilter(isBusiness), otelhttp.WithSpanNameFormatter(spanName))
	}
	return p, nil
}

// traces tells whether spans are exported.
func (c Telemetry) traces() bool {
	if c.Traces != nil {
		return *c.Traces
	}
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT")+os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// The paths that a service answers by itself.
const (
	livePath    = "/healthz"
	readyPath   = "/readyz"
	metricsPath = "/metrics"
)

// isBusiness tells a request from a probe, which would fill a backend with traces of nothing.
func isBusiness(r *http.Request) bool {
	return r.URL.Path != livePath && r.URL.Path != readyPath && r.URL.Path != metricsPath
}

// spanName is what the conventions for HTTP say: the route, not the path, whose names are without number.
func spanName(_ string, r *http.Request) string {
	if r.Pattern != "" {
		return r.Pattern
	}
	return r.Method
}

// close sends what has not been sent.
func (p providers) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	var errs []error
	for _, flush := range p.flush {
		errs = append(errs, flush(ctx))
	}
	return errors.Join(errs...)
}

// observe begins to report what is the service's own, and adds the paths that tell of it.
func (s *Service) observe() error {
	if !s.bare {
		stop, err := observePool(s.telemetry.meter, s.pool)
		if err != nil {
			return fmt.Errorf("observe the pool: %w", err)
		}
		s.telemetry.flush = append(s.telemetry.flush, func(context.Context) error { stop(); return nil })
	}
	if s.cfg.Migration.To != "" {
		stop, err := observeMigration(s.telemetry.meter, s.pool, s.cfg)
		if err != nil {
			return fmt.Errorf("observe the migration: %w", err)
		}
		s.telemetry.flush = append(s.telemetry.flush, func(context.Context) error { stop(); return nil })
	}
	operators := s.mux
	if s.admin == nil {
		s.health.register(s.mux, reasons)
	} else {
		operators = s.admin.mux
		s.health.register(s.mux, terse)
		s.health.register(operators, causes)
	}
	if s.telemetry.metrics != nil {
		operators.handleOwn("GET "+metricsPath, s.telemetry.metrics)
	}
	return nil
}
