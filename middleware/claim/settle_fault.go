package claim

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/pgunit"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/retry"
)

// Permanent marks a handler's error as one that no retry can help against: the event becomes a dead letter at once. It
// returns nil for nil.
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

// PanicError is the error of a handler that panicked.
type PanicError struct {
	Value any // what it panicked with
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("the handler panicked: %v", e.Value) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

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

// guard makes an error of a handler's panic, because the router knows nothing of attempts, and tells what the error
// itself may not.
func guard(timeout time.Duration, fn func(ctx context.Context) error) func(ctx context.Context) error {
	return func(ctx context.Context) (err error) {
		deadline, _ := ctx.Deadline()
		starved := time.Until(deadline) < timeout/2 // it has waited for a connection
		defer func() {
			if v := recover(); v != nil {
				err = &PanicError{Value: v, Stack: debug.Stack()}
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

// Why an event is in the table, in one word.
const (
	reasonError     = "error"
	reasonPanic     = "panic"
	reasonDeadline  = "deadline"
	reasonLost      = "lost"      // the connection, again and again, while other events committed
	reasonRetry     = "retry"     // its handler asked for another time, which is no failure
	reasonAttempts  = "attempts"  // it failed as often as it may
	reasonPermanent = "permanent" // its handler said so, or a rule
	reasonIgnored   = "ignored"   // a rule said so
	reasonWindow    = "window"    // ErrTooOld
	reasonClock     = "clock"     // ErrClock
	reasonMalformed = "malformed" // it has no usable ID
	reasonOutage    = "outage"    // what its handler needs was out: see Breaker

	reasonAcked = "acked" // it was acked before its claim committed, so no broker redelivers it

	reasonIdentified = "identified" // it had none, and waits under the one that was found
	reasonBlocked    = "blocked"
)

// fault is what a failure says about its event.
type fault struct {
	reason   string        // "": nothing, it was an outage or the like
	hopeless bool          // trying again cannot help
	counted  bool          // it is an attempt
	ignored  bool          // it is done without effect, says a rule
	rule     retry.Rule    // attempts and backoff, where one says so
	doubtful bool          // another event failed just before: it must not be the last attempt
	after    time.Duration // the handler asked for this; 0: it did not
}

// faultOf judges an attempt's error. ran tells that it is the handler's, or the commit's; stopping, that the service is
// shutting down.
func faultOf(ran bool, err error, stopping bool) fault {
	var again interface{ RetryAfter() time.Duration }
	var panicked *PanicError
	var late *lateError
	var malformed malformedError
	var starved starvedError
	switch {
	case errors.As(err, &malformed):
		return fault{reason: reasonMalformed, hopeless: true}
	case !ran && errors.Is(err, ErrTooOld):
		return fault{reason: reasonWindow, hopeless: true}
	case !ran && errors.Is(err, ErrClock):
		return fault{reason: reasonClock, counted: true}
	case !ran: // the claim was never got: the database is out of reach, its tables are missing
		return fault{}
	case errors.As(err, new(brokenError)):
		return fault{}
	case errors.As(err, &again) && !IsPermanent(err):
		return fault{reason: reasonRetry, after: max(again.RetryAfter(), 0)}
	case errors.As(err, &starved) && !IsPermanent(err):
		return fault{}
	case errors.As(err, &late):
		return fault{reason: reasonDeadline, counted: true, hopeless: IsPermanent(err)}
	case isOutage(err), stopping && errors.Is(err, context.Canceled):
		return fault{}
	case IsPermanent(err):
		return fault{reason: reasonPermanent, counted: true, hopeless: true}
	case errors.As(err, &panicked):
		return fault{reason: reasonPanic, counted: true}
	}
	return fault{reason: reasonError, counted: true}
}

// wasLost reports whether the connection was lost in the handler or in the commit.
func wasLost(err error) bool {
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
