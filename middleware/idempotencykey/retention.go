package idempotencykey

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgdays"
	"github.com/millrace-go/millrace/internal/pgschema"
)

func (k *Keys) table() pgdays.Table {
	return pgdays.Table{Schema: k.cfg.Schema, Name: "idempotency_key"}
}

// Run makes the days to come and drops those that are past Config.Retention, once an hour, until ctx ends. Any number of
// processes may run it. Dropping needs the rights of the table's owner: where the service has none, let "millrace retention
// run" do it.
func (k *Keys) Run(ctx context.Context) error {
	return pgdays.Every(ctx, k.cfg.Logger, "retention of idempotency keys", func(ctx context.Context) error {
		return Retain(ctx, k.pool, k.cfg.Schema, k.cfg.Retention)
	})
}

// Retain makes the days to come in the schema ("" means "millrace"), and drops those that ended longer than keep ago, by
// the server's clock.
func Retain(ctx context.Context, pool *pgxpool.Pool, schema string, keep time.Duration) error {
	schema, err := pgschema.Validate(schema)
	if err != nil {
		return fmt.Errorf("retain idempotency keys: %w", err)
	}
	table := pgdays.Table{Schema: schema, Name: "idempotency_key"}
	err = table.Ahead(ctx, pool)
	var now time.Time
	if nerr := pool.QueryRow(ctx, `select now()`).Scan(&now); nerr != nil {
		return errors.Join(err, nerr)
	}
	_, derr := table.Drop(ctx, pool, now.Add(-keep))
	if err = errors.Join(err, derr); err != nil {
		return fmt.Errorf("retain idempotency keys: %w", err)
	}
	return nil
}
