package pgtx_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/pgtx"
)

// Two round trips: BEGIN goes with the first statement, and the last one, whose answer nobody needs, with COMMIT.
func ExampleRun() {
	t := devtest.Example()
	defer t.End()
	ctx, pool := t.Context(), accounts(t)

	err := pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `update accounts set balance = balance - $2 where id = $1`, "ada", 30); err != nil {
			return err
		}
		return pgtx.Queue(ctx, `update accounts set balance = balance + $2 where id = $1`, "bob", 30)
	}, pgtx.Isolation(pgx.Serializable), pgtx.Retry(5))

	fmt.Println(err)
	printAccounts(ctx, pool)
	// Output:
	// <nil>
	// ada 70
	// bob 130
}

// A repository takes part in the transaction of its caller, if there is one.
func ExampleFrom() {
	t := devtest.Example()
	defer t.End()
	ctx, pool := t.Context(), accounts(t)

	deposit := func(ctx context.Context, id string, amount int) error {
		const update = `update accounts set balance = balance + $2 where id = $1`
		if tx, ok := pgtx.From(ctx); ok {
			_, err := tx.Exec(ctx, update, id, amount)
			return err
		}
		_, err := pool.Exec(ctx, update, id, amount)
		return err
	}
	fmt.Println(deposit(ctx, "ada", 1))
	fmt.Println(pgtx.Run(ctx, pool, func(ctx context.Context, _ pgx.Tx) error {
		if err := deposit(ctx, "bob", 50); err != nil {
			return err
		}
		return errors.New("the other half failed") // which undoes the deposit
	}))
	printAccounts(ctx, pool)
	// Output:
	// <nil>
	// the other half failed
	// ada 101
	// bob 100
}

// The transfer is rolled back. The note about the attempt commits by itself, so it stays.
func ExampleDetached() {
	t := devtest.Example()
	defer t.End()
	ctx, pool := t.Context(), accounts(t)

	fmt.Println(pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `update accounts set balance = balance - 30 where id = 'ada'`); err != nil {
			return err
		}
		err := pgtx.Run(pgtx.Detached(ctx), pool, func(ctx context.Context, _ pgx.Tx) error {
			return pgtx.Queue(ctx, `insert into accounts values ('attempts', 1) on conflict (id) do update set balance = accounts.balance + 1`)
		})
		if err != nil {
			return err
		}
		return errors.New("the other half failed")
	}))
	printAccounts(ctx, pool)
	// Output:
	// the other half failed
	// ada 100
	// attempts 1
	// bob 100
}

// accounts returns a pool on a database with two accounts.
func accounts(t *devtest.ExampleTB) *pgxpool.Pool {
	pool, _ := t.Database()
	if _, err := pool.Exec(t.Context(), `create table accounts (id text primary key, balance int not null);
		insert into accounts values ('ada', 100), ('bob', 100)`); err != nil {
		panic(err)
	}
	return pool
}

func printAccounts(ctx context.Context, pool *pgxpool.Pool) {
	rows, err := pool.Query(ctx, `select id, balance from accounts order by id`)
	if err != nil {
		panic(err)
	}
	var id string
	var balance int
	if _, err := pgx.ForEachRow(rows, []any{&id, &balance}, func() error {
		fmt.Println(id, balance)
		return nil
	}); err != nil {
		panic(err)
	}
}
