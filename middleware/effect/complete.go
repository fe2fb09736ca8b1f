package effect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/internal/service"
)

// Complete records what the provider told by a later call, such as a webhook, about the effect with the key, as Once was given it:
// WasDone with what Value is to return, or WasNotDone, after which the next Once calls again. A refusal for good is an outcome, too:
// WasDone with a response that says so.
//
// It is part of tx, so it commits or rolls back with what else the webhook writes; with nil it commits by itself. Answer the
// provider after the commit. tx holds the effect's lock until its end, so end it soon, and call Once for the key in no transaction that
// waits for tx. An event that waits for the effect in the claim's table, in the ledger's schema, is tried again at once; others see the outcome when they are
// redelivered.
//
// The first outcome stays. The same outcome again changes nothing, and is no error. Another one returns ErrContradicted, and a person
// must ask the provider. WasNotDone counts for an effect that was called once only: of a later call nobody knows whether the provider
// means it, or tells of an earlier one again. Then nothing changes, a warning says so, and the effect is in doubt when its time is up.
// An outcome may come before the call returns, and after the effect is in doubt: it settles the doubt. Only
// WasNotDone, while a call runs, returns ErrRunning, and WasDone after WasNotDone is taken, because the effect has happened. A key of
// no effect returns ErrNoEffect: it is wrong, or older than Config.Retention. After an error roll tx back and have the provider call again; after
// ErrContradicted and ErrNoEffect that cannot help.
func (l *Ledger) Complete(ctx context.Context, tx pgx.Tx, key string, outcome Outcome) error {
	err := errors.Join(validateKey(key), outcome.err)
	if outcome.state == "" {
		err = errors.Join(err, errors.New("the outcome is Unknown: want WasDone or WasNotDone"))
	}
	if err == nil {
		key = service.Scoped(l.cfg.Service, key)
		if tx != nil {
			err = l.complete(ctx, tx, key, outcome)
		} else {
			err = pgx.BeginTxFunc(ctx, l.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error { return l.complete(ctx, tx, key, outcome) })
		}
	}
	if err != nil {
		return fmt.Errorf("complete effect %q: %w", key, err)
	}
	return nil
}

func (l *Ledger) complete(ctx context.Context, tx pgx.Tx, key string, outcome Outcome) error {
	s := l.store
	s.lock = pgschema.Query(files, "complete", l.cfg.Schema)
	for {
		r, now, err := s.look(ctx, tx, key)
		if err != nil {
			return s.hint(err)
		}
		next, err := r.complete(outcome, now)
		if errors.Is(err, ErrContradicted) {
			l.cfg.Logger.ErrorContext(ctx, "an effect was completed twice, with different outcomes: the first one stays", "key", key, "settled_by", r.SettledBy)
		}
		if err == nil && next == nil && outcome.state == notDone && r.State != notDone {
			l.cfg.Logger.WarnContext(ctx, "an effect was called again, and the provider told that a call was not done: which one is not known, so the effect waits", "key", key, "calls", r.Calls)
		}
		if err != nil || next == nil {
			return err
		}
		err = s.write(ctx, tx, key, r, next)
		if errors.Is(err, errMoved) { // by Retain, and the next look finds it
			continue
		}
		if err != nil {
			return s.hint(err)
		}
		return l.wake(ctx, tx, key)
	}
}

// wake has the event that waits for the effect tried again.
func (l *Ledger) wake(ctx context.Context, tx pgx.Tx, key string) error {
	var there bool
	err := tx.QueryRow(ctx, pgschema.Query(files, "waiting", l.cfg.Schema)).Scan(&there)
	if err == nil && there {
		_, err = tx.Exec(ctx, pgschema.Query(files, "wake", l.cfg.Schema), key)
	}
	if err != nil {
		return fmt.Errorf("wake what waits for it: %w", err)
	}
	return nil
}

// complete is one of the record's transitions: the provider tells the outcome by a call of its own. It returns nil when nothing changes.
func (r *record) complete(o Outcome, now time.Time) (*record, error) {
	if r == nil {
		return nil, ErrNoEffect
	}
	next := *r
	switch {
	case r.State == done && o.state == done && r.Response == nil && o.response != nil:
		next.Response = o.response
	case r.State == done && o.state == done && (o.response == nil || sameJSON(r.Response, o.response)), r.State == notDone && o.state == notDone:
		return nil, nil
	case r.State == done:
		return nil, fmt.Errorf("%w, by %s", ErrContradicted, r.SettledBy)
	case r.Calls > 1 && o.state == notDone:
		return nil, nil
	case r.State == running && !r.inDoubt(now) && o.state == notDone:
		return nil, fmt.Errorf("%w, until %s at the latest", ErrRunning, r.Until.UTC().Format(time.RFC3339))
	default:
		next.settle(o.state, o.response, "complete", now)
	}
	return &next, nil
}

func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// pending is for an effect whose outcome comes by a later call.
func (l *Ledger) pending(r *record, now time.Time) error {
	return &waitError{fmt.Errorf("%w, and has until %s", ErrPending, r.Until.UTC().Format(time.RFC3339)), max(min(r.Until.Sub(now), l.cfg.RetryAfter), time.Millisecond)}
}

// postponed is what a call returns that is recorded as pending: the outcome, if the later call has come first.
func (l *Ledger) postponed(ctx context.Context, key string) (response []byte, err error) {
	var r *record
	var now time.Time
	err = l.store.change(context.WithoutCancel(ctx), l.cfg.RecordTimeout, key, func(_ pgx.Tx, found *record, at time.Time) (*record, error) {
		r, now = found, at
		return nil, nil
	})
	switch {
	case err != nil || r == nil:
		return nil, &waitError{errors.Join(ErrPending, err), l.cfg.RetryAfter}
	case r.State == done:
		return r.Response, nil
	}
	return nil, l.pending(r, now)
}
