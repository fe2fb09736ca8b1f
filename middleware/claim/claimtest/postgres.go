package claimtest

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// Postgres returns the fixture of a PostgresStore in the schema, which it migrates. Its effects are rows written in the handler's
// transaction, and its outputs are rows of the outbox. A test may put another store in front of it.
func Postgres(t *testing.T, pool *pgxpool.Pool, schema string) Fixture {
	t.Helper()
	require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
	require.NoError(t, claim.Migrate(t.Context(), pool, schema))
	table := schema + ".claimtest_effect"
	_, err := pool.Exec(t.Context(), `create table `+table+` (event_id text not null)`)
	require.NoError(t, err)
	count := func(sql string) map[string]int {
		rows, err := pool.Query(t.Context(), sql)
		require.NoError(t, err)
		counts := map[string]int{}
		var id string
		var n int
		_, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error { counts[id] = n; return nil })
		require.NoError(t, err)
		return counts
	}
	return Fixture{
		Store: claim.NewPostgresStore(pool, claim.Schema(schema)),
		Effect: func(ctx context.Context, eventID string) error {
			tx, ok := pgtx.From(ctx)
			if !ok {
				return errors.New("the handler's context carries no transaction")
			}
			_, err := tx.Exec(ctx, `insert into `+table+` values ($1)`, eventID)
			return err
		},
		Effects:       func() map[string]int { return count(`select event_id, count(*) from ` + table + ` group by 1`) },
		Outputs:       func() map[string]int { return count(`select event_id, count(*) from ` + schema + `.outbox group by 1`) },
		Transactional: true,
	}
}
