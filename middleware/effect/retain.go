package effect

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgdays"
	"github.com/millrace-go/millrace/internal/pgschema"
)

// minRetention is longer than a call runs, so no call that began on a dropped day is still running.
const minRetention = 24 * time.Hour

// Run checks the ledger. Then, until ctx ends, it creates the partitions of the next days, drops those older than Config.Retention,
// and reports how many effects are in doubt. It returns the error of Check; other errors are logged and retried. Effects work
// without it, and several processes may run it.
//
// If the role does not own the tables, Run drops nothing. Then "millrace retention run" must drop the days, as the owner.
func (l *Ledger) Run(ctx context.Context) error {
	if err := l.Check(ctx); err != nil {
		if ctx.Err() != nil { // stopped before the start
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

// housekeep does what Retain does, for a service, whose role need not own the tables.
func (l *Ledger) housekeep(ctx context.Context) error {
	_, err := retain(ctx, l.pool, l.cfg.Schema, l.cfg.Service, l.cfg.Retention)
	return pgdays.Table{Schema: l.cfg.Schema, Name: table}.Excuse(ctx, l.pool, l.cfg.Service, l.cfg.Retention, err)
}

const table = "effect"

// Retained is the result of Retain.
type Retained struct {
	Days  []string `json:"days"`  // dropped partitions
	Moved int64    `json:"moved"` // effects in doubt or in conflict, moved to the current day
	Kept  int64    `json:"kept"`  // outcomes of failed events, such as dead letters, moved to the current day
}

// Retain creates the partitions of the schema's ledger ("" means "millrace") for a week ahead, and drops the days that ended longer
// than keep ago by the server's clock, and longer ago than any service on the schema keeps them (see Config.Retention). keep is 24 h
// or more. Before that, it moves effects in doubt or in conflict to the current
// day. It also moves the outcomes of events that have failed in the claims of the same schema, so that the replay of a dead letter
// finds them.
//
// It blocks no writer, and waits for transactions that write to the ledger. Only the tables' owner can drop days. It may run at any
// time and in several processes at once. After an interruption, the next call continues.
func Retain(ctx context.Context, pool *pgxpool.Pool, schema string, keep time.Duration) (Retained, error) {
	return retain(ctx, pool, schema, "", keep)
}

// retain is Retain. It notes keep as the retention of the service; "" is none.
func retain(ctx context.Context, pool *pgxpool.Pool, schema, service string, keep time.Duration) (Retained, error) {
	var r Retained
	schema, err := pgschema.Validate(schema)
	if err == nil && keep < minRetention {
		err = fmt.Errorf("keep is %v: want %v or more", keep, minRetention)
	}
	if err == nil {
		err = newStore(pool, schema, keep).hint(r.retain(ctx, pool, schema, service, keep))
	}
	if err != nil {
		return r, fmt.Errorf("retention of effects: %w", err)
	}
	return r, nil
}

func (r *Retained) retain(ctx context.Context, pool *pgxpool.Pool, schema, service string, keep time.Duration) error {
	days := pgdays.Table{Schema: schema, Name: table}
	if err := days.Ahead(ctx, pool); err != nil {
		return err
	}
	before, err := days.Expiry(ctx, pool, service, keep)
	if err == nil {
		err = days.Owned(ctx, pool)
	}
	if err != nil {
		return err
	}
	// After this, these days get no unsettled effects: a call always begins on the current day.
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
