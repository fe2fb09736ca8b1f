package push

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/millrace-go/millrace/transport/pubsub/internal/conn"
)

// The outcomes of a push request, as metrics name them.
const (
	outcomeAcked          = "acked"
	outcomeNacked         = "nacked"
	outcomeBusy           = "busy" // no handler was free in time
	outcomeClosing        = "closing"
	outcomeUnauthorized   = "unauthorized"
	outcomeForbidden      = "forbidden"
	outcomeNoCertificates = "no_certificates"
	outcomeMalformed      = "malformed"
	outcomeTooLarge       = "too_large"
	outcomeSlow           = "slow_body"
	outcomeUnknown        = "unknown_subscription"
	outcomeMethod         = "method"
)

// answer is the answer to a push request. Pub/Sub takes 102, 200, 201, 202 and 204 for an ack and every other status for a nack; it
// ignores Retry-After. So the other statuses are for people and for the metric subscription/push_request_count, which Google records by
// status.
type answer struct {
	status     int
	outcome    string
	reason     string        // for the log and for an authenticated sender; it repeats nothing from the request
	err        error         // for the log
	retryAfter time.Duration // 0: none
}

var (
	ackedAnswer   = answer{status: http.StatusNoContent, outcome: outcomeAcked}
	nackedAnswer  = answer{status: http.StatusServiceUnavailable, outcome: outcomeNacked, reason: "not handled: deliver it again"}
	busyAnswer    = answer{status: http.StatusTooManyRequests, outcome: outcomeBusy, reason: "no handler was free in time: deliver it again"}
	closingAnswer = answer{status: http.StatusServiceUnavailable, outcome: outcomeClosing, reason: "nobody is subscribed here at the moment: deliver it again"}
)

func (a answer) write(w http.ResponseWriter) {
	if a.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((a.retryAfter+time.Second-1)/time.Second)))
	}
	if a.outcome == outcomeMethod {
		w.Header().Set("Allow", http.MethodPost)
	}
	reason := a.reason
	switch a.status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
		reason = "unauthorized"
	case http.StatusForbidden:
		reason = "forbidden"
	}
	if reason != "" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
	}
	w.WriteHeader(a.status)
	if reason != "" {
		_, _ = io.WriteString(w, reason+"\n") // the sender may have closed the connection
	}
	_ = http.NewResponseController(w).Flush() // before the subscription's Close returns
}

// warnEach is the shortest time between two warnings of one kind, because a misconfigured sender repeats its requests all the time.
const warnEach = 10 * time.Second

// observer counts the outcomes of push requests, and logs those that need attention.
type observer struct {
	log      *slog.Logger
	requests metric.Int64Counter

	mu     sync.Mutex
	warned map[string]*warning // by outcome
}

type warning struct {
	last   time.Time
	unsaid int
}

func newObserver(provider metric.MeterProvider, log *slog.Logger) (*observer, error) {
	requests, err := provider.Meter(conn.Scope).Int64Counter(
		"millrace.pubsub.push_requests", metric.WithUnit("{request}"),
		metric.WithDescription("Push requests, by what became of them."))
	return &observer{log: log, requests: requests, warned: map[string]*warning{}}, err
}

// observe counts the answer. consumer must be "" if it comes from an unauthenticated request.
func (o *observer) observe(ctx context.Context, consumer, subscriptionID string, a answer) {
	attributes := []attribute.KeyValue{attribute.String("millrace.outcome", a.outcome)}
	if consumer != "" {
		attributes = append(attributes, attribute.String("millrace.consumer", consumer))
	}
	o.requests.Add(ctx, 1, metric.WithAttributes(attributes...))
	switch a.outcome {
	case outcomeAcked, outcomeNacked, outcomeBusy, outcomeClosing:
		return
	}
	if unsaid, ok := o.mayWarn(a.outcome, time.Now()); ok {
		o.log.Warn("push request refused", slog.String("subscription", subscriptionID), slog.Int("status", a.status),
			slog.String("reason", a.reason), slog.Any("error", a.err), slog.Int("not_logged", unsaid))
	}
}

// mayWarn reports whether to warn now, and how many warnings of the kind were suppressed since the last.
func (o *observer) mayWarn(outcome string, now time.Time) (unsaid int, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.warned[outcome]
	if w == nil {
		w = &warning{}
		o.warned[outcome] = w
	}
	if now.Sub(w.last) < warnEach {
		w.unsaid++
		return 0, false
	}
	unsaid, w.unsaid, w.last = w.unsaid, 0, now
	return unsaid, true
}
