package devstack_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/framework/devstack"
)

// A program runs on services of its own, which end with it.
func Example() {
	ctx := context.Background()
	stack, err := devstack.Start(ctx, devstack.Postgres)
	if err != nil {
		panic(err)
	}
	defer func() { _ = stack.Stop() }()

	conn, err := pgx.Connect(ctx, stack.PostgresDSN())
	if err != nil {
		panic(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var answer string
	if err := conn.QueryRow(ctx, `select 'it answers'`).Scan(&answer); err != nil {
		panic(err)
	}
	for _, info := range stack.Services() {
		fmt.Println(info.Service, "is real:", info.Real)
	}
	fmt.Println(answer)
	// Output:
	// postgres is real: true
	// it answers
}
