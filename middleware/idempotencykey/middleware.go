package idempotencykey

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/millrace-go/millrace/pgtx"
)

var (
	errRejected   = errors.New("the handler rejected the request")     // only its answer is stored
	errDiscarded  = errors.New("the handler's answer is not its last") // nothing is stored
	errClientGone = errors.New("the client left before its turn came") // nothing has started
	errNested     = errors.New("the request's context carries a transaction already: the middleware begins its own; is it there twice?")
)

// Middleware executes next once for each key, as the package comment describes. Put outside of it: authentication, other middleware
// that may answer before the operation starts (such as a rate limit), middleware whose output belongs to one response (such as
// CORS), and http.TimeoutHandler, because nothing may use the transaction after the handler has returned. Middleware that reads the
// body goes inside. Headers that were set outside stay unchanged.
func (k *Keys) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(k.cfg.Methods, r.Method) || k.cfg.Optional && len(r.Header[headerKey]) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		outcome := failed // after a panic, which continues
		defer func() {
			k.requests.Add(context.WithoutCancel(r.Context()), 1, metric.WithAttributes(attribute.String("millrace.outcome", outcome)))
		}()
		outcome = k.serve(w, r, next)
	})
}

func (k *Keys) serve(w http.ResponseWriter, r *http.Request, next http.Handler) (outcome string) {
	key, err := keyOf(r.Header)
	switch {
	case errors.Is(err, errNoKey):
		k.refuse(w, r, KeyMissing, "")
		return invalid
	case err != nil:
		k.refuse(w, r, KeyMalformed, "In the Idempotency-Key header "+err.Error()+".")
		return invalid
	}
	scope, err := k.scope(r)
	if err != nil {
		return k.fail(w, r, misuse{err})
	}
	// Before it takes a connection: a slow client must not hold one.
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, k.cfg.MaxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		k.refuse(w, r, BodyTooLarge, fmt.Sprintf("Send at most %d bytes.", tooLarge.Limit))
		return invalid
	case err != nil:
		k.refuse(w, r, BodyUnreadable, "")
		return invalid
	case gone(r, body):
		return k.fail(w, r, misuse{errBodyGone})
	}
	a, outcome, err := k.execute(w.Header(), r, newRequest(r, k.cfg, scope, key, body), next)
	if err != nil {
		return k.fail(w, r, err)
	}
	a.send(w, outcome == replayed)
	return outcome
}

func (k *Keys) scope(r *http.Request) (string, error) {
	scope, err := k.cfg.Scope(r)
	switch {
	case err != nil:
		return "", fmt.Errorf("scope of the request: %w", err)
	case scope == "":
		return "", errors.New("the scope of the request is empty: is authentication outside of the middleware?")
	}
	if _, ok := pgtx.From(r.Context()); ok {
		return "", errNested
	}
	return scope, nil
}

// execute returns the answer to send: the handler's, or the stored one.
func (k *Keys) execute(outer http.Header, r *http.Request, req *request, next http.Handler) (*answer, string, error) {
	// Continue after the client hangs up: otherwise each of its retries could be undone as well.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), k.cfg.Timeout)
	defer cancel()
	outcome := executed
	a, err := k.once(ctx, req, func(ctx context.Context) (*answer, error) {
		if r.Context().Err() != nil {
			return nil, errClientGone
		}
		rec := newRecorder(outer, k.cfg.MaxResponse)
		next.ServeHTTP(rec, req.of(ctx, r))
		a, err := rec.answer()
		switch {
		case err != nil:
			return nil, err
		case k.cfg.repeatable(a.status):
			return a, errDiscarded
		case a.status >= 400:
			return a, errRejected
		}
		return a, nil
	})
	if errors.Is(err, errRejected) {
		// The handler's writes are rolled back by now, and the key is free. If another request has taken the key since, the answer
		// of that request counts.
		outcome = rejected
		rejection := a
		a, err = k.once(ctx, req, func(context.Context) (*answer, error) { return rejection, nil })
	}
	switch {
	case errors.Is(err, errDiscarded):
		return a, failed, nil
	case errors.Is(err, errReplayed):
		return a, replayed, nil
	}
	return a, outcome, err
}

// fail answers a request that could not be executed.
func (k *Keys) fail(w http.ResponseWriter, r *http.Request, err error) (outcome string) {
	kind, outcome := verdict(err)
	if problems[kind].Status >= 500 && !errors.Is(err, errClientGone) {
		k.cfg.Logger.ErrorContext(r.Context(), "idempotent request", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	k.refuse(w, r, kind, "")
	return outcome
}
