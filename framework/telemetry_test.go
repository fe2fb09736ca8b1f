package framework_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/framework"
)

// get returns the answer of one of the service's own paths.
func get(t *testing.T, svc *framework.Service, path string, header http.Header) (code int, body string) {
	t.Helper()
	return fetch(t, "http://"+svc.Address()+path, header)
}

// fetch is what an address answers.
func fetch(t *testing.T, url string, header http.Header) (code int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	for name, values := range header {
		req.Header[name] = values
	}
	response, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	all, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(all)
}

// TestServiceTrace: what a request publishes is handled in its trace, and what the handler logs says so; /metrics tells of
// it, and probes are not traced.
func TestServiceTrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	exporter := tracetest.NewInMemoryExporter()
	cfg.Telemetry.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	var log bytes.Buffer
	cfg.Log.Handler = slog.NewJSONHandler(&log, nil)
	svc := w.service(cfg)
	handled := make(chan trace.SpanContext, 1)
	require.NoError(t, handle(svc, w.name("first"), w.topic("one"), func(ctx context.Context, _ string) error {
		svc.Log().InfoContext(ctx, "handled")
		handled <- trace.SpanContextFromContext(ctx)
		return nil
	}))
	svc.HTTP().HandleFunc("GET /do/{id}", func(_ http.ResponseWriter, r *http.Request) {
		assert.NoError(t, svc.Tx(r.Context(), func(ctx context.Context, _ pgx.Tx) error {
			return publish(ctx, w.topic("one"), "key", "value")
		}))
	})
	svc.Use(func(h http.Handler) http.Handler { // which passes on another request than the span's
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { h.ServeHTTP(rw, r.Clone(r.Context())) })
	})
	stop := w.start(svc)
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	header := http.Header{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(t.Context(), parent), propagation.HeaderCarrier(header))
	code, _ := get(t, svc, "/do/17", header)
	require.Equal(t, http.StatusOK, code)
	select {
	case span := <-handled:
		assert.Equal(t, parent.TraceID(), span.TraceID())
	case <-time.After(wait):
		require.Fail(t, "the handler was not called")
	}
	code, metrics := get(t, svc, "/metrics", nil)
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, metrics, `http_route="/do/{id}"`)
	code, _ = get(t, svc, "/healthz", nil)
	assert.Equal(t, http.StatusOK, code)
	stop()

	names := map[string]int{}
	for _, span := range exporter.GetSpans() {
		names[span.Name]++
	}
	assert.Equal(t, 1, names["GET /do/{id}"])
	assert.Equal(t, 1, names["claim"])
	assert.NotContains(t, names, "GET /metrics")
	assert.NotContains(t, names, "GET /healthz")
	line := map[string]any{}
	for scanner := json.NewDecoder(&log); ; {
		one := map[string]any{}
		if err := scanner.Decode(&one); errors.Is(err, io.EOF) {
			break
		}
		if one["msg"] == "handled" {
			line = one
		}
	}
	assert.Equal(t, parent.TraceID().String(), line["trace_id"])
	assert.Equal(t, "labour", line["service"])
}

// TestTraceGoesOn: an event that comes back, alone or in a group, and its copy among the dead letters are of the trace in
// which it was published.
func TestTraceGoesOn(t *testing.T) {
	t.Parallel()
	for name, group := range map[string]int{"singly": 0, "in groups": 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "memory")
			cfg := w.config()
			cfg.Claim.Group, cfg.Claim.DeadLetterTopic = group, w.topic("dead")
			exporter := tracetest.NewInMemoryExporter()
			cfg.Telemetry.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
			svc := w.service(cfg)
			handled, buried := make(chan [2]trace.TraceID, 100), make(chan [2]trace.TraceID, 100)
			traces := func(ctx context.Context, n byte) [2]trace.TraceID {
				return [2]trace.TraceID{{n}, trace.SpanContextFromContext(ctx).TraceID()}
			}
			require.NoError(t, handle(svc, w.name("fail"), w.topic("numbers"), func(ctx context.Context, n byte) error {
				handled <- traces(ctx, n)
				return errors.New("not this one")
			}))
			require.NoError(t, handle(svc, w.name("bury"), w.topic("dead"), func(ctx context.Context, n byte) error {
				buried <- traces(ctx, n)
				return nil
			}))
			stop := w.start(svc)
			for n := range byte(3) {
				span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{n + 1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled})
				require.NoError(t, svc.Tx(trace.ContextWithSpanContext(t.Context(), span), func(ctx context.Context, _ pgx.Tx) error {
					return publish(ctx, w.topic("numbers"), "", n+1)
				}))
			}
			for range 6 { // twice each, as MaxAttempts says
				s := next(t, handled)
				assert.Equal(t, s[0], s[1])
			}
			for range 3 {
				s := next(t, buried)
				assert.Equal(t, s[0], s[1])
			}
			stop()
			failures := 0
			for _, span := range exporter.GetSpans() {
				if span.Name == "claim" && span.Status.Code == codes.Error {
					failures++
					assert.Contains(t, span.Status.Description, "not this one")
				}
			}
			assert.Equal(t, 6, failures, "although the router sees events that are done")
		})
	}
}

// TestClientsMakeNoSeries: what clients send as host and path is no label, so that they cannot fill the memory.
func TestClientsMakeNoSeries(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	svc := w.service(w.config())
	svc.HTTP().HandleFunc("GET /do/{id}", func(http.ResponseWriter, *http.Request) {})
	w.start(svc)
	for _, path := range []string{"/do/client-path", "/client-path"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+svc.Address()+path, http.NoBody)
		require.NoError(t, err)
		req.Host = "client-host:12345"
		response, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
	}
	_, metrics := get(t, svc, "/metrics", nil)
	assert.Contains(t, metrics, `http_route="/do/{id}"`)
	for _, word := range []string{"client-host", "12345", "client-path"} {
		assert.NotContains(t, metrics, word)
	}
}

// TestServiceLog: what the HTTP server and the start tell is in the service's log.
func TestServiceLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	var log output
	cfg.Log.Handler = slog.NewTextHandler(&log, nil)
	cfg.Handlers = map[string]framework.Handler{w.name("nptify"): {Ordered: true}}
	svc := w.service(cfg)
	require.NoError(t, svc.AddHandler(w.name("notify"), "numbers", ignore))
	svc.HTTP().HandleFunc("GET /panic", func(http.ResponseWriter, *http.Request) { panic("a handler's") })
	w.start(svc)
	assert.True(t, log.has("a handler that is not there"), "which is a typo")
	assert.True(t, log.has("nearest="+w.name("notify")))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+svc.Address()+"/panic", http.NoBody)
	require.NoError(t, err)
	_, err = http.DefaultClient.Do(req) //nolint:bodyclose // there is none
	require.Error(t, err)
	w.eventually("the panic", func() bool { return log.has("a handler's") })
}
