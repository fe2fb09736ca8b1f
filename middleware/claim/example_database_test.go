package claim_test

import (
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
)

// migrate makes the tables of the outbox and the claim for an example, as "millrace migrate up" does.
func migrate(t *devtest.ExampleTB, pool *pgxpool.Pool, schema string) {
	if err := outbox.Migrate(t.Context(), pool, schema); err != nil {
		panic(err)
	}
	if err := claim.Migrate(t.Context(), pool, schema); err != nil {
		panic(err)
	}
}
