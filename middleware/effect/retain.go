package effect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgdays"
	"github.com/millrace-go/millrace/internal/pgschema"
)

// minRetention keeps a day until nothing that began in it can still be running.
const minRetention = 24 * time.Hour

// Run checks the ledger, then makes its days ahead, drops those past Config.Retention, and reports how much is in doubt,
// until ctx ends. It returns the error of Check; whatever else fails is logged and tried again. Effects do not need it to
// run; several processes may.
//
// Where the role does not own the tables, days are not dropped here: "millrace retention run" does it as their owner.
func (l *Ledger) Run(ctx context.Context) error {
	if err := l.Check(ctx); err != nil {
		return err
	}
	stop, err := l.observe.start(l)
	if err != nil {
		return fmt.Errorf("effect: %w", err)
	}
	defer stop()
	return pgdays.Every(ctx, l.cfg.Logger, "effects", func(ctx context.Context) error {
		if err := l.store.makeDays(ctx); err != nil {
			return err
		}
		dropped, err := Retain(ctx, l.pool, l.cfg.Schema, l.cfg.Retention)
		for _, d := range dropped {
			l.cfg.Logger.InfoContext(ctx, "a day of effects is dropped", "partition", d.Partition)
		}
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && pgErr.Code == "42501" {
			l.cfg.Logger.WarnContext(ctx, "days of effects are not dropped", "error", err)
			return nil
		}
		return err
	})
}

// Retain drops the days of the schema's ledger ("" means "millrace") that ended longer ago than keep, 24 h or more, by the
// server's clock, and returns them. What is in doubt or in conflict in them moves to the present day first. It is for the
// tables' owner, holds nobody up, and may run in several processes at once.
func Retain(ctx context.Context, pool *pgxpool.Pool, schema string, keep time.Duration) ([]pgdays.Day, error) {
	schema, err := pgschema.Validate(schema)
	if keep < minRetention {
		err = errors.Join(err, fmt.Errorf("keep is %v: want %v or more", keep, minRetention))
	}
	if err != nil {
		return nil, fmt.Errorf("retain effects: %w", err)
	}
	var now time.Time
	if err := pool.QueryRow(ctx, `select clock_timestamp()`).Scan(&now); err != nil {
		return nil, fmt.Errorf("retain effects: %w", err)
	}
	before := now.Add(-keep)
	// Nothing unsettled appears in those days after this: a call always begins in the present one.
	if _, err := pool.Exec(ctx, pgschema.Query(files, "move", schema), before); err != nil {
		return nil, fmt.Errorf("retain effects: move what is in doubt: %w", err)
	}
	return pgdays.Table{Schema: schema, Name: "effect"}.Drop(ctx, pool, before)
}
