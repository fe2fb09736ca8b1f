package idempotencykey

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgdays"
	"github.com/millrace-go/millrace/internal/pgschema"
)

// minRetention keeps yesterday, which Retain creates too.
const minRetention = 24 * time.Hour

func tableIn(schema string) pgdays.Table {
	return pgdays.Table{Schema: schema, Name: "idempotency_key"}
}

// Retained is the result of Retain.
type Retained struct {
	Days []string `json:"days"` // dropped partitions
}

// Retain creates the partitions of the schema ("" means "millrace") for a week ahead, and drops the days that ended longer than
// keep ago by the server's clock, and longer ago than any service on the schema keeps them (see Config.Retention). keep is 24 h or
// more. It blocks no request. Only the table's owner can drop days. It may run at
// any time and in several processes at once. After an interruption, the next call continues.
func Retain(ctx context.Context, pool *pgxpool.Pool, schema string, keep time.Duration) (Retained, error) {
	return retain(ctx, pool, schema, "", keep)
}

// retain is Retain. It notes keep as the retention of the service; "" is none.
func retain(ctx context.Context, pool *pgxpool.Pool, schema, service string, keep time.Duration) (Retained, error) {
	r := Retained{Days: []string{}}
	schema, err := pgschema.Validate(schema)
	if err == nil && keep < minRetention {
		err = fmt.Errorf("keep is %v: want %v or more", keep, minRetention)
	}
	if err == nil {
		err = r.retain(ctx, pool, tableIn(schema), service, keep)
	}
	if err != nil {
		return r, fmt.Errorf("retention of idempotency keys: %w", err)
	}
	return r, nil
}

func (r *Retained) retain(ctx context.Context, pool *pgxpool.Pool, table pgdays.Table, service string, keep time.Duration) error {
	if err := table.Ahead(ctx, pool); err != nil {
		return err
	}
	before, err := table.Expiry(ctx, pool, service, keep)
	if err != nil {
		return err
	}
	dropped, err := table.Drop(ctx, pool, before)
	for _, d := range dropped {
		r.Days = append(r.Days, d.Partition)
	}
	return err
}

// Run calls Retain with Config.Retention about once an hour, until ctx ends. Any number of processes may run it. If the service's
// role does not own the table, Run only creates days, and "millrace retention run" must drop the old ones.
func (k *Keys) Run(ctx context.Context) error {
	return pgdays.Every(ctx, k.cfg.Logger, "idempotency keys", k.housekeep)
}

func (k *Keys) housekeep(ctx context.Context) error {
	_, err := retain(ctx, k.pool, k.cfg.Schema, k.cfg.Service, k.cfg.Retention)
	return k.hint(tableIn(k.cfg.Schema).Excuse(ctx, k.pool, k.cfg.Service, k.cfg.Retention, err))
}
