package effect

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/service"
	"github.com/millrace-go/millrace/outbox"
)

// longestWait is the longest wait of an event that met a running call. Calls usually end long before their deadline.
const longestWait = time.Second

// Ledger records effects in PostgreSQL. It is safe for concurrent use.
//
// It opens a few connections of its own, configured like those of the given pool, and uses none of that pool. So handlers that hold
// all connections of the pool in their transactions cannot wait for each other through the ledger, and the ledger never waits for a
// row that a handler has locked. If it cannot get a connection, because of a limit of the server or of a pooler, Once fails after
// Config.RecordTimeout and the handler's transaction ends. Check verifies the limits at start.
type Ledger struct {
	cfg     Config
	pool    *pgxpool.Pool // the ledger's own
	service int32         // MaxConns of the given pool
	store   store
	observe *observer
}

// New returns a ledger in the pool's database. The caller still owns the pool. The ledger opens its connections on demand. Call
// Close when nothing uses the ledger any more.
func New(pool *pgxpool.Pool, cfg Config) (*Ledger, error) {
	cfg = cfg.WithDefaults()
	err := cfg.Validate()
	if pool == nil {
		err = errors.Join(errors.New("pool is nil: want the *pgxpool.Pool of the service's database"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("effect: %w", err)
	}
	own := pool.Config()
	service := own.MaxConns
	own.MaxConns, own.MinConns, own.MinIdleConns = cfg.MaxConns, 0, 0
	l := &Ledger{cfg: cfg, service: service}
	if l.observe, err = newObserver(cfg.MeterProvider); err != nil {
		return nil, fmt.Errorf("effect: %w", err)
	}
	if l.pool, err = pgxpool.NewWithConfig(context.Background(), own); err != nil {
		return nil, fmt.Errorf("effect: %w", err)
	}
	l.store = newStore(l.pool, cfg.Schema, cfg.Retention)
	return l, nil
}

// Close closes the ledger's connections. It waits until the current writes have ended.
func (l *Ledger) Close() { l.pool.Close() }

// Middleware puts the ledger into the context of the message for h. Its order among other middleware does not matter.
func (l *Ledger) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		original := msg.Context()
		defer msg.SetContext(original)
		msg.SetContext(With(original, l))
		return h(msg)
	}
}

// once returns the response of the successful call: this one, or an earlier one.
func (l *Ledger) once(ctx context.Context, key string, fn func(context.Context, string) ([]byte, error), o options) ([]byte, error) {
	token := uuid.New()
	for failures := 0; ; {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if deadline, ok := ctx.Deadline(); ok {
			o.timeout = min(o.timeout, time.Until(deadline))
		}
		ends := time.Now().Add(o.timeout) // taken before the intent is recorded, so it is never later than the deadline in the server
		var what verdict
		var r *record
		var now time.Time
		// Without cancellation: if the commit were interrupted, it could leave an intent without a call.
		err := l.store.change(context.WithoutCancel(ctx), l.cfg.RecordTimeout, key, func(_ pgx.Tx, found *record, at time.Time) (next *record, _ error) {
			r, now = found, at
			if found == nil || found.Token != token { // otherwise the answer to our own commit was lost
				o.doubted = found != nil && found.inDoubt(at)
			}
			what, next = begin(found, at, token, o, l.cfg.Settle)
			if found == nil && next != nil {
				next.EventID = outbox.CauseFrom(ctx)
			}
			return next, nil
		})
		if err != nil {
			outage := errors.As(err, new(*outageError))
			if err = fmt.Errorf("record the intent: %w", err); outage { // nothing was called, and the event is not at fault
				err = &waitError{err, l.cfg.RecordTimeout}
			}
			return nil, err
		}
		switch what {
		case call:
			response, err := l.call(ctx, key, token, ends, fn, o)
			if err == nil {
				return response, nil
			}
			if failures++; !o.again(ctx, l.own(key), err, failures) {
				return nil, err
			}
			token = uuid.New()
		case replay:
			l.observe.replayed(ctx)
			return r.Response, nil
		case wait:
			return nil, l.waits(r, now)
		case stuck:
			return nil, &waitError{fmt.Errorf("%w: %s; \"millrace effect resolve\" settles it", ErrInDoubt, r.since()), l.cfg.RetryAfter}
		case ask:
			if err := l.reconcile(ctx, key, r, o); err != nil {
				return nil, err
			}
		}
	}
}

// own returns the key as the caller gave it.
func (l *Ledger) own(key string) string {
	return strings.TrimPrefix(key, service.Scoped(l.cfg.Service, ""))
}

// waits returns the error for a call that may be running, or whose provider is not to be asked yet.
func (l *Ledger) waits(r *record, now time.Time) error {
	if r.inDoubt(now) {
		return &waitError{fmt.Errorf("%w: %s; the provider is asked soon", ErrInDoubt, r.since()), max(r.Until.Add(l.cfg.Settle).Sub(now), time.Millisecond)}
	}
	if r.State == pending {
		return l.pending(r, now)
	}
	after := max(min(r.Until.Sub(now), longestWait), time.Millisecond)
	return &waitError{fmt.Errorf("%w, until %s at the latest", ErrRunning, r.Until.UTC().Format(time.RFC3339)), after}
}

func (r *record) since() string {
	text := "since " + r.Until.UTC().Format(time.RFC3339)
	if r.Reason != "" {
		text += ", because of " + r.Reason
	}
	return text
}

// call calls fn, whose intent is recorded, and records the outcome.
func (l *Ledger) call(ctx context.Context, key string, token uuid.UUID, ends time.Time, fn func(context.Context, string) ([]byte, error), o options) ([]byte, error) {
	fctx, cancel := context.WithDeadline(ctx, ends)
	defer cancel()
	err := context.Cause(fctx)
	if err == nil && !time.Now().Before(ends) { // the context's timer is late, for example after a pause of the process
		err = context.DeadlineExceeded
	}
	if err != nil { // another process may be allowed to call by now
		return nil, errors.Join(err, l.finish(ctx, key, token, notDone, nil, "its time was up before the call", o))
	}
	returned := false
	defer func() {
		if !returned { // fn panics; the panic continues
			_ = l.finish(ctx, key, token, doubt, nil, "a panic", o) // logged
		}
	}()
	response, err := fn(fctx, idempotencyKey(l.cfg.Schema, key))
	returned = true

	switch {
	case err == nil:
		if err := l.finish(ctx, key, token, done, response, "", o); err != nil {
			return nil, &waitError{fmt.Errorf("%w: it is done, but that could not be recorded: %w", ErrInDoubt, err), l.cfg.RetryAfter}
		}
		return response, nil
	case isNotDone(err) && !o.doubted:
		return nil, errors.Join(err, l.finish(ctx, key, token, notDone, nil, err.Error(), o))
	}
	if mark, is := markOf(err).(*pendingError); is { //nolint:errorlint // it is the mark itself
		o.within = mark.within
		if err := l.finish(ctx, key, token, pending, nil, "", o); err != nil {
			return nil, &waitError{fmt.Errorf("%w: it is pending, but that could not be recorded: %w", ErrInDoubt, err), l.cfg.RetryAfter}
		}
		return l.postponed(ctx, key)
	}
	recorded := l.finish(ctx, key, token, doubt, nil, err.Error(), o)
	err = fmt.Errorf("%w: %w", ErrInDoubt, errors.Join(err, recorded))
	if o.idempotent || o.reconcile != nil {
		return nil, err // a failure as any other: the next delivery finds out
	}
	return nil, &waitError{err, l.cfg.RetryAfter}
}

// maxReason is the maximum length of a recorded error text, in bytes.
const maxReason = 1000

// storable returns the text without what a column cannot hold.
func storable(text string) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "")
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "")
	}
	return text
}

// finish records the end of a call. The outcome must not be lost when ctx ends.
func (l *Ledger) finish(ctx context.Context, key string, token uuid.UUID, state string, response []byte, reason string, o options) error {
	reason = storable(reason)
	ctx = context.WithoutCancel(ctx)
	l.observe.called(ctx, state)
	var conflict bool
	err := l.store.change(ctx, l.cfg.RecordTimeout, key, func(_ pgx.Tx, r *record, now time.Time) (next *record, _ error) {
		if r == nil {
			return nil, errors.New("the intent is gone: was the table emptied?")
		}
		next, conflict = r.finish(token, state, now, response, reason, o)
		if next != nil {
			state = next.State
		}
		return next, nil
	})
	switch {
	case err != nil:
		l.cfg.Logger.ErrorContext(ctx, "the outcome of an effect could not be recorded, it will be in doubt", "key", key, "outcome", state, "error", err)
		return fmt.Errorf("record the outcome: %w", err)
	case conflict:
		l.observe.conflict(ctx)
		l.cfg.Logger.ErrorContext(ctx, "an effect has probably happened twice: a call succeeded after another one had begun", "key", key)
	case state == doubt:
		l.cfg.Logger.WarnContext(ctx, "an effect is in doubt", "key", key, "reason", reason)
	}
	return nil
}

// reconcile asks the provider. If it returns nil, the effect is settled, by this answer or by another process.
func (l *Ledger) reconcile(ctx context.Context, key string, r *record, o options) error {
	actx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	outcome, err := o.reconcile(actx, Intent{
		Key: l.own(key), IdempotencyKey: idempotencyKey(l.cfg.Schema, key), Calls: r.Calls,
		FirstCalledAt: r.FirstCalledAt, CalledAt: r.CalledAt, Since: r.Until, Reason: r.Reason,
	})
	if err = errors.Join(err, outcome.err); err != nil {
		return &waitError{fmt.Errorf("%w: %s; ask the provider: %w", ErrInDoubt, r.since(), err), l.cfg.RetryAfter}
	}
	if outcome.state == "" {
		return &waitError{fmt.Errorf("%w: %s; the provider does not know", ErrInDoubt, r.since()), l.cfg.RetryAfter}
	}
	settled := false
	err = l.store.change(ctx, l.cfg.RecordTimeout, key, func(_ pgx.Tx, found *record, now time.Time) (*record, error) {
		if settled = found != nil && found.Token == r.Token && found.inDoubt(now); !settled {
			return nil, nil // another process was faster
		}
		next := *found
		next.settle(outcome.state, outcome.response, "reconcile", now)
		return &next, nil
	})
	if err != nil {
		return fmt.Errorf("record what the provider knows: %w", err)
	}
	if settled {
		l.observe.reconciled(ctx, outcome.state)
		l.cfg.Logger.InfoContext(ctx, "an effect in doubt is settled", "key", key, "outcome", outcome.state, "settled_by", "reconcile")
	}
	return nil
}
