// Package effect is the ledger for effects outside the database that nobody can roll back, such as a text message or a payment. An
// effect with a known outcome is never repeated. An effect with an unknown outcome is in doubt, and the doubt is settled before the
// provider is called again.
//
// [Once] and [Value] record the intent, call the provider, and record the outcome with the response. When the event is redelivered,
// they return the recorded response. The ledger commits each record at once, on its own connections, so a record survives the
// rollback of a surrounding claim. A process that dies between the call and the record leaves the effect in doubt. What the next
// Once for its key does depends on the options: it calls again with the same idempotency key ([Idempotent]), or asks the provider
// ([Reconcile]). Without these options it returns [ErrInDoubt], and a person must decide ("millrace effect list").
//
// If a provider answers later, for example by a webhook, the effect is pending ([Pending]) until [Ledger.Complete] is called.
//
// The ledger has two limits. After Config.Retention a redelivered event repeats its effect (the replay of a dead letter does not,
// see Retain). And a process that pauses between its last deadline check and the call may call after another process was allowed
// to. A provider that honours idempotency keys makes one effect of the two calls. With any other provider, the ledger detects it
// when the call returns, and reports a conflict.
package effect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/internal/pgunit"
	"github.com/millrace-go/millrace/internal/service"
)

var (
	// ErrInDoubt means that nobody knows whether the effect happened. The call is not repeated. If the error has a method
	// RetryAfter() time.Duration, deliver the event again after that time and do not count an attempt: the answer of the provider
	// or of a person is missing.
	ErrInDoubt = errors.New("the effect is in doubt")

	// ErrRunning means that another call for the key may be running. The error has a method RetryAfter.
	ErrRunning = errors.New("the effect is running elsewhere")

	// ErrNoResponse means that the effect is done, but was settled without the response that Value needs. "millrace effect resolve
	// KEY --done --response JSON" adds it.
	ErrNoResponse = errors.New("the effect is done, but its response is not known")

	// ErrPending means that the provider has accepted the effect and will report its outcome later: see Pending. The error has a
	// method RetryAfter.
	ErrPending = errors.New("the effect is pending: the provider has not told its outcome yet")

	// ErrNoEffect means that the ledger has no effect with the key: see Ledger.Complete.
	ErrNoEffect = errors.New("no such effect")

	// ErrContradicted means that the effect was settled before with another outcome, which stays: see Ledger.Complete.
	ErrContradicted = errors.New("the effect was settled before, with another outcome")

	// ErrNoLedger means that the context carries no ledger: add Ledger.Middleware to the router, or use With.
	ErrNoLedger = errors.New("no effect ledger in the context: add ledger.Middleware to the router, or use effect.With")
)

// NotDone marks the error of a call that certainly had no effect: the provider refused it, or was never reached. The next Once
// calls again. Any other error leaves the outcome of the call unknown, above all a timeout or a broken connection. NotDone(nil) is
// nil.
//
// It tells only of this call. If Idempotent let it begin while an earlier call was in doubt, the effect is in doubt again, and Once
// returns ErrInDoubt.
//
// The next call gets the same idempotency key. If the provider stores refusals under that key, use another effect key.
func NotDone(err error) error {
	if err == nil {
		return nil
	}
	return &notDoneError{err}
}

type notDoneError struct{ error }

func (e *notDoneError) Unwrap() error { return e.error }

// onceError wraps the error of one effect. markOf does not look into it, so a mark does not count for an outer effect.
type onceError struct{ error }

func (e *onceError) Unwrap() error { return e.error }

// Pending is the error to return from the function of Once or Value when the provider has accepted the effect and will report its
// outcome later, for example by a webhook that calls Ledger.Complete. errors.As must find it in the returned error. Once then
// returns ErrPending, which counts no attempt. The event is handled again after Config.RetryAfter at the latest, and Once then
// returns the reported outcome. Without a report within the given time the effect is in doubt: the options decide what follows, or
// a person. If the time is not positive, the effect is in doubt at once.
func Pending(within time.Duration) error { return &pendingError{within} }

type pendingError struct{ within time.Duration }

func (e *pendingError) Error() string {
	return fmt.Sprintf("the provider has taken it, and tells its outcome within %v", e.within)
}

// markOf returns the error of NotDone or Pending in the call's error, or nil. It ignores the mark of another effect that the call
// has asked for.
func markOf(err error) error {
	switch e := err.(type) { //nolint:errorlint // it walks the tree itself
	case *notDoneError, *pendingError:
		return err
	case *onceError:
		return nil
	case interface{ Unwrap() error }:
		return markOf(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if mark := markOf(err); mark != nil {
				return mark
			}
		}
	}
	return nil
}

// isNotDone reports whether NotDone marks the call's error.
func isNotDone(err error) bool {
	_, is := markOf(err).(*notDoneError) //nolint:errorlint // it is the mark itself
	return is
}

// waitError is the error of an effect that this event is to wait for. The claim counts no attempt.
type waitError struct {
	error
	after time.Duration
}

func (e *waitError) Unwrap() error             { return e.error }
func (e *waitError) RetryAfter() time.Duration { return e.after }

type contextKey struct{}

// With returns a context that carries the ledger, for Once and Value.
func With(ctx context.Context, l *Ledger) context.Context {
	return context.WithValue(ctx, contextKey{}, l)
}

// Once calls fn once for the key. If a call for the key has succeeded before, Once returns nil without a call. The key names the
// effect, not the attempt, for example "parents-sms:" and the event's ID. It is 1 to 512 bytes of UTF-8. It belongs to the service
// (Config.Service): the ledger, the logs and "millrace effect" show it as "service/key".
//
// The context of fn ends with ctx, and after Config.CallTimeout or Timeout at the latest. fn also gets an idempotency key for the
// provider. It is the same at each call for the key, and differs in every other service and schema. When fn returns nil, the effect
// is done. When fn returns an error, Once returns it wrapped. If NotDone does not mark the error, the effect is in doubt, and the
// error is also ErrInDoubt. With Pending, the effect waits for Ledger.Complete. A panic also leaves the effect in doubt.
//
// fn must not write to a surrounding transaction: after a rollback, the next delivery does not call fn again. Write after Once,
// with the response that Value returns.
//
// Once is safe for concurrent use. It holds no connection while fn runs.
func Once(ctx context.Context, key string, fn func(ctx context.Context, idempotencyKey string) error, opts ...Option) error {
	_, err := once(ctx, key, func(ctx context.Context, idempotencyKey string) ([]byte, error) {
		return nil, fn(ctx, idempotencyKey)
	}, opts)
	return err
}

// Value is Once with a response. The response is recorded as JSON. Value always returns the recorded response, the first time too,
// so fields that JSON does not encode are missing.
func Value[T any](ctx context.Context, key string, fn func(ctx context.Context, idempotencyKey string) (T, error), opts ...Option) (T, error) {
	var value T
	if _, err := json.Marshal(value); err != nil { // before the call: after it, this would be too late
		return value, fmt.Errorf("effect %q: its response is no JSON: %w", key, err)
	}
	var broken error
	response, err := once(ctx, key, func(ctx context.Context, idempotencyKey string) ([]byte, error) {
		v, err := fn(ctx, idempotencyKey)
		if err != nil {
			return nil, err
		}
		response, err := json.Marshal(v)
		broken = err // the effect is done nevertheless
		return response, nil
	}, opts)
	switch {
	case err != nil:
		return value, err
	case broken != nil:
		return value, fmt.Errorf("effect %q: %w: %w", key, ErrNoResponse, broken)
	case response == nil:
		return value, fmt.Errorf("effect %q: %w", key, ErrNoResponse)
	}
	if err := json.Unmarshal(response, &value); err != nil {
		return value, fmt.Errorf("effect %q is done, but its response is of another type: %w", key, err)
	}
	return value, nil
}

func once(ctx context.Context, key string, fn func(context.Context, string) ([]byte, error), opts []Option) ([]byte, error) {
	l, _ := ctx.Value(contextKey{}).(*Ledger)
	if l == nil {
		return nil, fmt.Errorf("effect %q: %w", key, ErrNoLedger)
	}
	o := options{timeout: l.cfg.CallTimeout}
	for _, opt := range opts {
		opt(&o)
	}
	if err := errors.Join(validateKey(key), o.validate()); err != nil {
		return nil, fmt.Errorf("effect %q: %w", key, err)
	}
	key = service.Scoped(l.cfg.Service, key)
	if err := pgunit.Begin(ctx); err != nil { // starts a lazy claim, which may be refused
		return nil, fmt.Errorf("effect %q: %w", key, err)
	}
	response, err := l.once(ctx, key, fn, o)
	if err != nil {
		return nil, &onceError{fmt.Errorf("effect %q: %w", key, err)}
	}
	return response, nil
}
