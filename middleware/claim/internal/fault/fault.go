// Package fault decides what a failure means for its event. It has no I/O.
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

// Permanent marks an error that retries cannot fix. Permanent(nil) is nil.
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

// Malformed is the error of a message without a usable ID.
type Malformed struct{ Err error }

func (e Malformed) Error() string { return e.Err.Error() }
func (e Malformed) Unwrap() error { return e.Err }

// Broken is the error of an open circuit breaker. The handler was not called, so it is not an attempt.
type Broken struct{ Err error }

func (e Broken) Error() string { return e.Err.Error() }
func (e Broken) Unwrap() error { return e.Err }

// lateError is the error of a handler that was still running at its deadline. It may wrap nil.
type lateError struct{ err error }

func (e *lateError) Error() string {
	text := "the handler exceeded its deadline"
	if e.err != nil {
		text += ": " + e.err.Error()
	}
	return text
}

func (e *lateError) Unwrap() []error { return []error{context.DeadlineExceeded, e.err} }

// lostError is the error of a handler whose connection was lost.
type lostError struct{ error }

func (e lostError) Unwrap() error { return e.error }

// foreignError is the error of a handler that tells nothing about the claim's database: no statement of the claim's transaction has
// failed, or the error says that a connection ended, and the transaction's is open.
type foreignError struct{ error }

func (e foreignError) Unwrap() error { return e.error }

// starvedError is a lateError of a handler that started with less than half of its time left.
type starvedError struct{ error }

func (e starvedError) Unwrap() error { return e.error }

// Guard turns a panic of the handler into an error, with panicked, because the router does not count attempts. It also wraps the
// error with what the error itself may not tell: late, starved, lost or foreign.
func Guard(timeout time.Duration, panicked func(value any, stack []byte) error, fn func(ctx context.Context) error) func(ctx context.Context) error {
	return func(ctx context.Context) (err error) {
		deadline, _ := ctx.Deadline()
		starved := time.Until(deadline) < timeout/2 // it waited for a connection
		defer func() {
			if v := recover(); v != nil {
				err = panicked(v, debug.Stack())
			}
			lost := err != nil && pgunit.Lost(ctx)
			switch {
			case errors.Is(ctx.Err(), context.DeadlineExceeded): // also if it returned nil, because the commit would fail the same way
				err = &lateError{err}
				if starved {
					err = starvedError{err}
				}
			case lost && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled):
				err = lostError{err} // if a context of the handler ended, pgx closed the connection; that is the handler's error
			case err != nil && !lost && (pgunit.Sound(ctx) || elsewhere(ctx, err)):
				err = foreignError{err}
			}
		}()
		return fn(ctx)
	}
}

// elsewhere reports whether the error is about a connection that ended. Call it only if the transaction's is open: pgx closes that one
// at each FATAL error. A server may raise such a code as an ERROR, for example for the server of a foreign table.
func elsewhere(ctx context.Context, err error) bool {
	if _, ok := pgtx.From(ctx); !ok { // nothing is known of a *sql.Tx
		return false
	}
	var pgErr *pgconn.PgError
	return errors.As(err, new(*pgconn.ConnectError)) ||
		errors.As(err, &pgErr) && (strings.HasPrefix(pgErr.Code, "08") || strings.HasPrefix(pgErr.Code, "57P"))
}

// OutageDelay is the delay of a redelivery if the failure is not the event's fault.
const OutageDelay = time.Second

// Reasons why an event is in the table.
const (
	ReasonError     = "error"
	ReasonPanic     = "panic"
	ReasonDeadline  = "deadline"
	ReasonLost      = "lost"      // the connection was lost repeatedly, while other events committed
	ReasonRetry     = "retry"     // the handler asked for a later time, which is no failure
	ReasonAttempts  = "attempts"  // all allowed attempts failed
	ReasonPermanent = "permanent" // the handler or a rule says so
	ReasonIgnored   = "ignored"   // a rule says so
	ReasonWindow    = "window"    // ErrTooOld
	ReasonClock     = "clock"     // ErrClock
	ReasonMalformed = "malformed" // it has no usable ID
	ReasonOutage    = "outage"    // a dependency of the handler was down: see Breaker

	ReasonAcked = "acked" // acked before its claim committed, so no broker redelivers it
)

// Fault is what a failure means for its event.
type Fault struct {
	Reason   string        // "": not the event's fault, for example an outage
	Hopeless bool          // a retry cannot help
	Counted  bool          // it counts as an attempt
	Ignored  bool          // a rule settles the event without effect
	Rule     retry.Rule    // attempts and backoff, if a rule sets them
	Doubtful bool          // another event failed just before, so this must not be the last attempt
	After    time.Duration // the delay that the handler asked for; 0: none
}

// Failure describes an attempt that failed.
type Failure struct {
	Err      error
	Ran      bool // Err is from the handler or the commit
	Panicked bool // the handler panicked
	Stopping bool // the service is shutting down
}

// Of returns the fault of a failed attempt.
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
	case !ran: // no claim: the database cannot be reached, or its tables are missing
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

// wasOutage reports whether the claim's database failed, other than by a conflict of transactions. Like a lost connection, this may be
// an outage, or the fault of a handler: it needs too much, makes its transaction read-only, or queues a statement that ends its session.
func wasOutage(err error) bool {
	return isOutage(err) && !errors.As(err, new(starvedError)) && !wasConflict(err)
}

// wasConflict reports whether the claim's database ended the transaction because of another one. This may also be the fault of a handler:
// a function that raises the error itself, or another database's error after a savepoint.
func wasConflict(err error) bool {
	var pgErr *pgconn.PgError
	return isOutage(err) && errors.As(err, &pgErr) && strings.HasPrefix(pgErr.Code, "40")
}

// isOutage reports whether the claim's database failed, or ended the transaction because of another one. Neither is the event's
// fault.
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
	case "53400": // a configured limit, which this event alone may exceed
		return false
	}
	// Connections; out of disk, memory or connections; operator intervention; system errors.
	return strings.HasPrefix(pgErr.Code, "08") || strings.HasPrefix(pgErr.Code, "53") ||
		strings.HasPrefix(pgErr.Code, "57P") || strings.HasPrefix(pgErr.Code, "58")
}
