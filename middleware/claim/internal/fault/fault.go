// Package fault decides what a failure says about its event, and what becomes of the event then. It has no I/O.
package fault

import (
	"context"
	"errors"
	"runtime/debug"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/pgunit"
	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/retry"
)

// Permanent marks an error as one that no retry can help against. It returns nil for nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanent{err}
}

// IsPermanent reports whether err, or an error that it wraps, was marked with Permanent.
func IsPermanent(err error) bool {
	var p permanent
	return errors.As(err, &p)
}

type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// Malformed is about a message that cannot be told from others.
type Malformed struct{ Err error }

func (e Malformed) Error() string { return e.Err.Error() }
func (e Malformed) Unwrap() error { return e.Err }

// Broken is the error of a circuit breaker that is open: the handler was not called, so it is no attempt.
type Broken struct{ Err error }

func (e Broken) Error() string { return e.Err.Error() }
func (e Broken) Unwrap() error { return e.Err }

// lateError is the error of a handler that was still running at its deadline, which may have returned none.
type lateError struct{ err error }

func (e *lateError) Error() string {
	text := "the handler exceeded its deadline"
	if e.err != nil {
		text += ": " + e.err.Error()
	}
	return text
}

func (e *lateError) Unwrap() []error { return []error{context.DeadlineExceeded, e.err} }

// lostError is the error of a handler under which the connection was lost.
type lostError struct{ error }

func (e lostError) Unwrap() error { return e.error }

// foreignError is the error of a handler in whose transaction no statement has failed: a server's error in it came from another
// connection, and says nothing about the claim's.
type foreignError struct{ error }

func (e foreignError) Unwrap() error { return e.error }

// starvedError is a lateError of a handler that was called with less than half of its time left.
type starvedError struct{ error }

func (e starvedError) Unwrap() error { return e.error }

// Guard makes an error of a handler's panic by panicked, because the router knows nothing of attempts, and tells what the error
// itself may not.
func Guard(timeout time.Duration, panicked func(value any, stack []byte) error, fn func(ctx context.Context) error) func(ctx context.Context) error {
	return func(ctx context.Context) (err error) {
		deadline, _ := ctx.Deadline()
		starved := time.Until(deadline) < timeout/2 // it has waited for a connection
		defer func() {
			if v := recover(); v != nil {
				err = panicked(v, debug.Stack())
			}
			switch {
			case errors.Is(ctx.Err(), context.DeadlineExceeded): // also when it returned nil: the commit would find the same
				err = &lateError{err}
				if starved {
					err = starvedError{err}
				}
			case err != nil && pgunit.Lost(ctx) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled):
				err = lostError{err} // while a context of the handler's own, at whose end pgx closes the connection, is its doing
			case err != nil && pgunit.Sound(ctx):
				err = foreignError{err}
			}
		}()
		return fn(ctx)
	}
}

// OutageDelay is when a message comes back that could not be handled through no fault of its own.
const OutageDelay = time.Second

// Why an event is in the table, in one word.
const (
	ReasonError     = "error"
	ReasonPanic     = "panic"
	ReasonDeadline  = "deadline"
	ReasonLost      = "lost"      // the connection, again and again, while other events committed
	ReasonRetry     = "retry"     // its handler asked for another time, which is no failure
	ReasonAttempts  = "attempts"  // it failed as often as it may
	ReasonPermanent = "permanent" // its handler said so, or a rule
	ReasonIgnored   = "ignored"   // a rule said so
	ReasonWindow    = "window"    // ErrTooOld
	ReasonClock     = "clock"     // ErrClock
	ReasonMalformed = "malformed" // it has no usable ID
	ReasonOutage    = "outage"    // what its handler needs was out: see Breaker

	ReasonAcked = "acked" // it was acked before its claim committed, so no broker redelivers it
)

// Fault is what a failure says about its event.
type Fault struct {
	Reason   string        // "": nothing, it was an outage or the like
	Hopeless bool          // trying again cannot help
	Counted  bool          // it is an attempt
	Ignored  bool          // it is done without effect, says a rule
	Rule     retry.Rule    // attempts and backoff, where one says so
	Doubtful bool          // another event failed just before: it must not be the last attempt
	After    time.Duration // the handler asked for this; 0: it did not
}

// Failure is what is known of an attempt that failed.
type Failure struct {
	Err      error
	Ran      bool // it is the handler's error, or the commit's
	Panicked bool // the handler did
	Stopping bool // the service is shutting down
}

// Of judges an attempt that failed.
func Of(f Failure) Fault {
	ran, err := f.Ran, f.Err
	var again interface{ RetryAfter() time.Duration }
	var late *lateError
	var malformed Malformed
	var starved starvedError
	switch {
	case errors.As(err, &malformed):
		return Fault{Reason: ReasonMalformed, Hopeless: true}
	case !ran && errors.Is(err, store.ErrTooOld):
		return Fault{Reason: ReasonWindow, Hopeless: true}
	case !ran && errors.Is(err, store.ErrClock):
		return Fault{Reason: ReasonClock, Counted: true}
	case !ran: // the claim was never got: the database is out of reach, its tables are missing
		return Fault{}
	case errors.As(err, new(Broken)):
		return Fault{}
	case errors.As(err, &again) && !IsPermanent(err):
		return Fault{Reason: ReasonRetry, After: max(again.RetryAfter(), 0)}
	case errors.As(err, &starved) && !IsPermanent(err):
		return Fault{}
	case errors.As(err, &late):
		return Fault{Reason: ReasonDeadline, Counted: true, Hopeless: IsPermanent(err)}
	case isOutage(err), f.Stopping && errors.Is(err, context.Canceled):
		return Fault{}
	case IsPermanent(err):
		return Fault{Reason: ReasonPermanent, Counted: true, Hopeless: true}
	case f.Panicked:
		return Fault{Reason: ReasonPanic, Counted: true}
	}
	return Fault{Reason: ReasonError, Counted: true}
}

// WasLost reports whether the connection was lost in the handler or in the commit.
func WasLost(err error) bool {
	return errors.As(err, new(lostError)) || errors.Is(err, pgtx.ErrOutcomeUnknown) && !errors.As(err, new(foreignError))
}

// isOutage reports whether the claim's database failed, or ended the transaction for the sake of another: neither says anything
// against the event.
func isOutage(err error) bool {
	var lost lostError
	var connect *pgconn.ConnectError
	if errors.As(err, new(foreignError)) {
		return false
	}
	if errors.Is(err, pgtx.ErrOutcomeUnknown) || errors.As(err, &lost) || errors.As(err, &connect) {
		return true
	}
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return false
	}
	switch pgErr.Code {
	case "40001", "40P01", // serialization failure, deadlock
		"25006": // read-only: a standby, during a failover
		return true
	case "53400": // a configured limit, which this event may exceed alone
		return false
	}
	// Connections; out of disk, memory or connections; the operator's intervention; the system.
	return strings.HasPrefix(pgErr.Code, "08") || strings.HasPrefix(pgErr.Code, "53") ||
		strings.HasPrefix(pgErr.Code, "57P") || strings.HasPrefix(pgErr.Code, "58")
}
