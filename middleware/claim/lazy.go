package claim

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgunit"
	"github.com/millrace-go/millrace/pgtx"
)

// Ensure claims the event now, where the claim would otherwise wait for the handler's first statement (Config.Lazy). An error
// means that the event must not be handled: return it. Call it with the handler's context before anything that must not
// happen for a duplicate and that is no part of the transaction. It does nothing when the event is claimed, and without a
// claim.
func Ensure(ctx context.Context) error {
	return pgunit.Begin(ctx)
}

// lazily calls fn in a transaction whose claim travels with fn's first statement, or with COMMIT. A refused claim is the
// error of that statement. ran is false if the claim was refused, whatever fn made of it: then err tells why, as place does.
func (s *PostgresStore) lazily(ctx context.Context, key Key, fn func(ctx context.Context) error) (ran bool, err error) {
	if err := s.usable(ctx); err != nil {
		return false, err
	}
	consumer, err := s.consumer(ctx, key.Consumer)
	if err != nil {
		return false, err
	}
	eagerly := func(ctx context.Context, fn func(ctx context.Context) error) (ran bool, err error) {
		err = s.place(ctx, key, func(ctx context.Context) error {
			ran = true
			return fn(ctx)
		})
		return ran, err
	}
	o := &pgunit.Opening{
		SQL: s.sql.claim, Args: claimArgs(ctx, s.schema, key, consumer, false, true), Explain: s.explain, Implicit: !s.isolated.Load(),
	}
	err = pgtx.Run(ctx, s.pool, func(ctx context.Context, _ pgx.Tx) error {
		if err := pgunit.Open(ctx, o); err != nil {
			return err
		}
		ran = true
		if err := fn(ctx); err != nil {
			return err
		}
		return o.Err
	}, pgtx.Isolation(pgx.ReadCommitted))
	if errors.Is(o.Err, errIsolation) {
		s.isolated.Store(true)
	}
	switch {
	case errors.Is(o.Err, errIsolation), errors.Is(o.Err, errStaleConsumer), errors.Is(o.Err, errNoDay), errors.Is(o.Err, errOld):
		return eagerly(ctx, fn) // which knows more than one place to claim
	case o.Err != nil:
		return false, o.Err
	case !ran || err == nil || o.Sent:
		return ran, err
	}
	// The handler has failed and nobody knows yet whose the event is.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
	defer cancel()
	failure := err
	ran, err = eagerly(ctx, func(context.Context) error { return failure })
	if !ran {
		err = fmt.Errorf("%w (before its claim the handler had failed: %s)", err, failure.Error())
	}
	return ran, err
}
