package pgtx_test

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/pgtx"
)

// Two round trips: BEGIN with the first statement, the last one with COMMIT. Nobody needs an answer to that one.
func ExampleRun() {
	transfer := func(ctx context.Context, pool *pgxpool.Pool, from, to string, amount int) error {
		return pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `update accounts set balance = balance - $2 where id = $1`, from, amount); err != nil {
				return err
			}
			return pgtx.Queue(ctx, `update accounts set balance = balance + $2 where id = $1`, to, amount)
		}, pgtx.Isolation(pgx.Serializable), pgtx.Retry(5))
	}
	_ = transfer
}

// A repository that takes part in the transaction of its caller, if there is one.
func ExampleFrom() {
	rename := func(ctx context.Context, pool *pgxpool.Pool, id, name string) error {
		const update = `update accounts set name = $2 where id = $1`
		if tx, ok := pgtx.From(ctx); ok {
			_, err := tx.Exec(ctx, update, id, name)
			return err
		}
		_, err := pool.Exec(ctx, update, id, name)
		return err
	}
	_ = rename
}
