package framework_test

import (
	"context"
	"crypto/rand"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack"
)

// database returns a database for an example, with a schema of its own.
func database(ctx context.Context) (cfg framework.Postgres, drop func()) {
	stack, err := devstack.Start(ctx, devstack.Postgres)
	if err != nil {
		panic(err)
	}
	cfg = framework.Postgres{DSN: stack.PostgresDSN(), Schema: "example_" + strings.ToLower(rand.Text()[:12]), Migrate: true}
	return cfg, func() {
		conn, err := pgx.Connect(ctx, cfg.DSN)
		if err != nil {
			panic(err)
		}
		defer func() { _ = stack.Stop() }()
		defer func() { _ = conn.Close(ctx) }()
		if _, err := conn.Exec(ctx, "drop schema "+cfg.Schema+" cascade"); err != nil {
			panic(err)
		}
	}
}
