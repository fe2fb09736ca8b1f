package effect

import (
	"context"
	"fmt"
	"time"

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
		if ctx.Err() != nil { // it was stopped before it had begun
			return nil
		}
		return err
	}
	stop, err := l.observe.start(l)
	if err != nil {
		return fmt.Errorf("effect: %w", err)
	}
	defer stop()
	return pgdays.Every(ctx, l.cfg.Logger, "effects", l.housekeep)
}

// housekeep is Retain for a consumer, whose role need not own the tables.
func (l *Ledger) housekeep(ctx context.Context) error {
	_, err := Retain(ctx, l.pool, l.cfg.Schema, l.cfg.Retention)
	return pgdays.Table{Schema: l.cfg.Schema, Name: table}.Excuse(ctx, l.pool, l.cfg.Retention, err)
}

const table = "effect"

// Retained is what retention did.
type Retained struct {
	Days  []string `json:"days"`  // partitions that were dropped
	Moved int64    `json:"moved"` // effects in doubt or in conflict, which went to the present day
	Kept  int64    `json:"kept"`  // outcomes that events which failed need, as dead letters do; they went to the present day
}

// Retain makes days of the schema's ledger ("" means "millrace") for a week ahead, and drops those that ended longer ago
// than keep, 24h or more, by the server's clock. What is in doubt or in conflict in them moves to the present day first, and so
// do the outcomes of events that have failed in the claims of the same schema: a dead letter that is replayed later finds them.
//
// It holds nobody up, and waits for transactions that write to the ledger. Only the tables' owner may drop. It may run at
// any time, in several processes at once, and goes on where another was interrupted.
func Retain(ctx context.Context, pool *pgxpool.Pool, schema string, keep time.Duration) (Retained, error) {
	var r Retained
	schema, err := pgschema.Validate(schema)
	if err == nil && keep < minRetention {
		err = fmt.Errorf("keep is %v: want %v or more", keep, minRetention)
	}
	if err == nil {
		err = newStore(pool, schema).hint(r.retain(ctx, pool, schema, keep))
	}
	if err != nil {
		return r, fmt.Errorf("retention of effects: %w", err)
	}
	return r, nil
}

func (r *Retained) retain(ctx context.Context, pool *pgxpool.Pool, schema string, keep time.Duration) error {
	days := pgdays.Table{Schema: schema, Name: table}
	if err := days.Ahead(ctx, pool); err != nil {
		return err
	}
	if err := days.Owned(ctx, pool); err != nil {
		return err
	}
	var now time.Time
	if err := pool.QueryRow(ctx, `select clock_timestamp()`).Scan(&now); err != nil {
		return fmt.Errorf("ask for the server's time: %w", err)
	}
	before := now.Add(-keep)
	// Nothing unsettled appears in those days after this: a call always begins in the present one.
	moved, err := pool.Exec(ctx, pgschema.Query(files, "move", schema), before)
	if err != nil {
		return fmt.Errorf("move what is in doubt: %w", err)
	}
	r.Moved = moved.RowsAffected()
	var claims bool
	if err := pool.QueryRow(ctx, `select to_regclass($1::text) is not null`, `"`+schema+`".claim_failed`).Scan(&claims); err != nil {
		return fmt.Errorf("look for dead letters: %w", err)
	}
	if claims {
		kept, err := pool.Exec(ctx, pgschema.Query(files, "keep", schema), before)
		if err != nil {
			return fmt.Errorf("move what dead letters need: %w", err)
		}
		r.Kept = kept.RowsAffected()
	}
	dropped, err := days.Drop(ctx, pool, before)
	for _, d := range dropped {
		r.Days = append(r.Days, d.Partition)
	}
	return err
}
