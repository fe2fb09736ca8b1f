package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgunit"
	"github.com/millrace-go/millrace/pgtx"
)

// Lazily calls fn in a transaction. The claim is sent with fn's first statement, or with COMMIT. A refused claim is the error of
// that statement. Then ran is false and err is the reason, as from Do, whatever fn returned.
func (s *Postgres) Lazily(ctx context.Context, key Key, fn func(ctx context.Context) error) (ran bool, err error) {
	if err := s.usable(ctx); err != nil {
		return false, err
	}
	consumer, err := s.Consumer(ctx, key.Consumer)
	if err != nil {
		return false, err
	}
	eagerly := func(ctx context.Context, fn func(ctx context.Context) error) (ran bool, err error) {
		err = s.Do(ctx, key, func(ctx context.Context) error {
			ran = true
			return fn(ctx)
		})
		return ran, err
	}
	o := &pgunit.Opening{
		SQL: s.sql.claim, Args: claimArgs(ctx, s.Schema, key, consumer, false, true), Explain: s.explain, Implicit: !s.isolated.Load(),
	}
	err = pgtx.Run(ctx, s.Pool, func(ctx context.Context, _ pgx.Tx) error {
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
	case errors.Is(o.Err, errIsolation), errors.Is(o.Err, ErrStale), errors.Is(o.Err, errNoDay), errors.Is(o.Err, errOld):
		return eagerly(ctx, fn) // Do knows more than one place for the record
	case o.Err != nil:
		return false, o.Err
	case !ran || err == nil || o.Sent:
		return ran, err
	}
	// The handler has failed before the claim was sent, so it is unknown whether the event was processed or is claimed elsewhere.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), KeepTimeout)
	defer cancel()
	failure := err
	ran, err = eagerly(ctx, func(context.Context) error { return failure })
	if !ran {
		err = fmt.Errorf("%w (before its claim the handler had failed: %s)", err, failure.Error())
	}
	return ran, err
}
