package idempotencykey

import (
	"go.opentelemetry.io/otel/metric"
)

// scope is the instrumentation scope of the counter.
const scope = "github.com/millrace-go/millrace/middleware/idempotencykey"

// Outcomes of a request, as the counter reports them.
const (
	executed = "executed" // executed, and its writes are committed
	rejected = "rejected" // refused by the handler: rolled back, and the answer is stored
	failed   = "failed"   // rolled back, and nothing is stored: the handler's 5xx, a panic, the database
	replayed = "replayed" // the stored answer was sent
	running  = "running"  // refused: the first request is still running
	reused   = "reused"   // refused: the key was used for another request before
	invalid  = "invalid"  // refused: key or body is not valid
	unknown  = "unknown"  // the connection was lost during COMMIT
)

func newCounter(provider metric.MeterProvider) (metric.Int64Counter, error) {
	return provider.Meter(scope).Int64Counter("millrace.idempotencykey.requests", metric.WithUnit("{request}"),
		metric.WithDescription("Requests by what became of them (millrace.outcome)."))
}
