package idempotencykey

import (
	"go.opentelemetry.io/otel/metric"
)

// scope names the instrument's origin.
const scope = "github.com/millrace-go/millrace/middleware/idempotencykey"

// What became of a request, as the counter tells it.
const (
	executed = "executed" // and its writes committed
	rejected = "rejected" // by the handler: rolled back, and the answer stored
	failed   = "failed"   // rolled back and nothing stored: the handler's 5xx, a panic, the database
	replayed = "replayed" // the stored answer was sent
	running  = "running"  // refused while the first one runs
	reused   = "reused"   // refused, because the key came with another request before
	invalid  = "invalid"  // refused for its key or its body
	unknown  = "unknown"  // the connection was lost during COMMIT
)

func newCounter(provider metric.MeterProvider) (metric.Int64Counter, error) {
	return provider.Meter(scope).Int64Counter("millrace.idempotencykey.requests", metric.WithUnit("{request}"),
		metric.WithDescription("Requests by what became of them (millrace.outcome)."))
}
