// Package effect is the ledger for effects outside the database: a text message, a payment, a call that nobody can roll
// back. An effect with a known outcome is never repeated; one whose outcome is unknown is in doubt, and that is settled
// before anything is called again.
//
// [Once] and [Value] record the intent, call the provider, and record the outcome with the response, which they hand out
// again when the event is redelivered. Each record is committed at once, on connections of the ledger's own, so it
// outlives the rollback of a claim around it. A process that dies between call and record leaves the effect in doubt. The
// next Once for its key then does what its options allow: call again with the same idempotency key ([Idempotent]), ask the
// provider ([Reconcile]), else return [ErrInDoubt], and the effect waits for a person ("millrace effect list").
//
// A provider that answers later, by a webhook, leaves the effect pending ([Pending]) until [Ledger.Complete] is called.
//
// Where it ends: after Config.Retention a redelivery has its effect again, but the replay of a dead letter has
// not (see Retain). And a process that is stopped between the last
// look at its deadline and the call itself may call after another one was allowed to; a provider that honours keys makes
// one effect of it, and otherwise the ledger sees it when the call returns, and reports a conflict.
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
	// ErrInDoubt means that nobody knows whether the effect happened. The call is not repeated. Where the error has a
	// method RetryAfter() time.Duration, deliver the event again after that time, and count no attempt: what is missing
	// is an answer of the provider, or of a person.
	ErrInDoubt = errors.New("the effect is in doubt")

	// ErrRunning means that another call for the key may be under way. The error has a method RetryAfter.
	ErrRunning = errors.New("the effect is running elsewhere")

	// ErrNoResponse means that the effect is done, but its response is not known, which Value needs: it was settled
	// without one. "millrace effect resolve KEY --done --response JSON" adds it.
	ErrNoResponse = errors.New("the effect is done, but its response is not known")

	// ErrPending means that the provider has taken the effect, and will tell its outcome by a later call: see Pending. The error has a
	// method RetryAfter.
	ErrPending = errors.New("the effect is pending: the provider has not told its outcome yet")

	// ErrNoEffect means that the ledger knows no effect with the key: see Ledger.Complete.
	ErrNoEffect = errors.New("no such effect")

	// ErrContradicted means that the effect was settled before, with another outcome, which stays: see Ledger.Complete.
	ErrContradicted = errors.New("the effect was settled before, with another outcome")

	// ErrNoLedger means that the context carries no ledger: add Ledger.Middleware to the router, or use With.
	ErrNoLedger = errors.New("no effect ledger in the context: add ledger.Middleware to the router, or use effect.With")
)

// NotDone marks an error of a call that certainly had no effect: the provider refused it, or was never reached. The intent
// is withdrawn, and the next Once calls again. Any other error of a call leaves its outcome unknown, timeouts and broken
// connections above all. NotDone(nil) is nil.
//
// The next call gets the same idempotency key. A provider that remembers refusals with it needs another effect key.
func NotDone(err error) error {
	if err == nil {
		return nil
	}
	return &notDoneError{err}
}

type notDoneError struct{ error }

func (e *notDoneError) Unwrap() error { return e.error }

// onceError is what became of one effect.
type onceError struct{ error }

func (e *onceError) Unwrap() error { return e.error }

// Pending is what the function of Once or Value returns when the provider has taken the effect and will tell its outcome by a later
// call, such as a webhook, which calls Ledger.Complete. The error must not be hidden from errors.As. Once returns ErrPending, which
// counts no attempt; the event is handled again after Config.RetryAfter at the latest, and Once then returns what the later call said.
// If none has come within that time, the effect is in doubt: what the options allow follows, or a person decides. A time that is not
// positive leaves it in doubt at once.
func Pending(within time.Duration) error { return &pendingError{within} }

type pendingError struct{ within time.Duration }

func (e *pendingError) Error() string {
	return fmt.Sprintf("the provider has taken it, and tells its outcome within %v", e.within)
}

// markOf is the error of NotDone or Pending in the call's error, or nil. The mark of another effect, which the call has asked for, says
// nothing about this one.
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

// isNotDone reports whether the call's error is marked by NotDone.
func isNotDone(err error) bool {
	_, is := markOf(err).(*notDoneError) //nolint:errorlint // it is the mark itself
	return is
}

// waitError is for what settles without this event's help.
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

// Once calls fn for the key once: it returns nil without a call when a call for the key has succeeded before. The key
// names the effect, not the attempt: "parents-sms:" and the event's ID. It belongs to the service (Config.Service); the
// ledger, logs and "millrace effect" know it as "service/key". It has 1 to 512 bytes of UTF-8.
//
// fn gets a context that ends with ctx, and after Config.CallTimeout at the latest, and an idempotency key to hand to the
// provider, which is the same at each call for the key, and another one in every other service and schema. When fn returns nil the effect is done. An error of fn is returned, wrapped; unless it is marked by NotDone the
// effect is in doubt, and the error is ErrInDoubt too. With Pending it waits for Ledger.Complete. A panic leaves it in doubt as well.
//
// fn must not write to a transaction that surrounds it: when that is rolled back the next delivery does not call fn again.
// Do it after Once, with what Value returns.
//
// Once is safe for concurrent use. It holds no connection while fn runs.
func Once(ctx context.Context, key string, fn func(ctx context.Context, idempotencyKey string) error, opts ...Option) error {
	_, err := once(ctx, key, func(ctx context.Context, idempotencyKey string) ([]byte, error) {
		return nil, fn(ctx, idempotencyKey)
	}, opts)
	return err
}

// Value is Once with a response, which is recorded as JSON. It returns what the record holds, the first time too: fields
// that JSON does not carry are never there.
func Value[T any](ctx context.Context, key string, fn func(ctx context.Context, idempotencyKey string) (T, error), opts ...Option) (T, error) {
	var value T
	if _, err := json.Marshal(value); err != nil { // known too late after the call
		return value, fmt.Errorf("effect %q: its response is no JSON: %w", key, err)
	}
	var broken error
	response, err := once(ctx, key, func(ctx context.Context, idempotencyKey string) ([]byte, error) {
		v, err := fn(ctx, idempotencyKey)
		if err != nil {
			return nil, err
		}
		response, err := json.Marshal(v)
		broken = err // but it is done
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
	if err := pgunit.Begin(ctx); err != nil { // a lazy claim, which may be refused
		return nil, fmt.Errorf("effect %q: %w", key, err)
	}
	response, err := l.once(ctx, key, fn, o)
	if err != nil {
		return nil, &onceError{fmt.Errorf("effect %q: %w", key, err)}
	}
	return response, nil
}
