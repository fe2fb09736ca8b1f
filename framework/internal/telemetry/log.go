package telemetry

import (
	"context"
	"io"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

// Log configures a logger. The framework's Log documents the fields.
type Log struct {
	Level   slog.Level
	Format  string
	Handler slog.Handler
}

// Logger returns the service's logger. Its records have the trace and span of their context.
func Logger(w io.Writer, service string, cfg Log) *slog.Logger {
	handler := cfg.Handler
	if handler == nil {
		options := &slog.HandlerOptions{Level: cfg.Level}
		if handler = slog.NewTextHandler(w, options); cfg.Format == "json" {
			handler = slog.NewJSONHandler(w, options)
		}
	}
	return slog.New(tracedHandler{handler}).With("service", service)
}

// tracedHandler adds trace_id and span_id to records whose context has a span. The names follow OpenTelemetry's conventions for
// logs.
type tracedHandler struct{ slog.Handler }

// Handle implements slog.Handler.
func (h tracedHandler) Handle(ctx context.Context, r slog.Record) error {
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		r = r.Clone()
		r.AddAttrs(slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h tracedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return tracedHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h tracedHandler) WithGroup(name string) slog.Handler {
	return tracedHandler{h.Handler.WithGroup(name)}
}
