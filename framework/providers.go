package framework

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// providers are what the parts are observed by. Zero fields are OpenTelemetry's global ones, or nothing.
type providers struct {
	meter      metric.MeterProvider
	tracer     trace.TracerProvider
	propagator propagation.TextMapPropagator
	metrics    http.Handler // for Prometheus; nil: the metrics go elsewhere
	flush      []func(context.Context) error
	requests   func(address string, h http.Handler) http.Handler // around the HTTP mux
}
