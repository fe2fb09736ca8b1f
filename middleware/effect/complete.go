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

// Complete records an outcome that the provider reports later, for example by a webhook: WasDone with the response that Value is to
// return, or WasNotDone, after which the next Once calls again. key is the key as given to Once. A permanent refusal is WasDone,
// too, with a response that says so.
//
// With a tx, Complete is part of it and commits or rolls back with the webhook's other writes. With nil, it commits by itself.
// Answer the provider after the commit. tx holds the effect's lock until it ends, so keep it short. tx must not wait for a
// transaction whose handler calls Once with the same key. If an event waits for the effect in the claim's table, in the same schema
// as the ledger, it is retried at once. Other events see the outcome at their next delivery.
//
// The first outcome stays. The same outcome again changes nothing and returns nil. Another outcome returns ErrContradicted; then a
// person must ask the provider. Exception: WasDone replaces WasNotDone, because the effect has happened. WasNotDone counts only for
// an effect that was called once. After several calls nobody knows which of them it reports, so nothing changes, a warning is
// logged, and the effect is in doubt when its time is up. An outcome may come before the call returns, or when the effect is in
// doubt, and settles the effect. But WasNotDone during a call returns ErrRunning. An unknown key returns ErrNoEffect: it is wrong,
// or older than Config.Retention. After an error, roll back tx and let the provider call again. That does not help after
// ErrContradicted and ErrNoEffect.
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
		if errors.Is(err, errMoved) { // Retain has moved it; the next look finds it
			continue
		}
		if err != nil {
			return s.hint(err)
		}
		return l.wake(ctx, tx, r.EventID)
	}
}

// wake makes the event that waits for an effect due now. "" is no event.
func (l *Ledger) wake(ctx context.Context, tx pgx.Tx, eventID string) error {
	if eventID == "" {
		return nil
	}
	var there bool
	err := tx.QueryRow(ctx, pgschema.Query(files, "waiting", l.cfg.Schema)).Scan(&there)
	if err == nil && there {
		_, err = tx.Exec(ctx, pgschema.Query(files, "wake", l.cfg.Schema), eventID)
	}
	if err != nil {
		return fmt.Errorf("wake the event that waits for the effect: %w", err)
	}
	return nil
}

// complete is one of the record's transitions: the provider reports the outcome later. It returns nil if nothing changes.
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

// pending returns the error for an effect whose outcome is to be reported later.
func (l *Ledger) pending(r *record, now time.Time) error {
	return &waitError{fmt.Errorf("%w, and has until %s", ErrPending, r.Until.UTC().Format(time.RFC3339)), max(min(r.Until.Sub(now), l.cfg.RetryAfter), time.Millisecond)}
}

// postponed returns the result of a call that was recorded as pending: ErrPending, or the response if the outcome was reported
// already.
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
