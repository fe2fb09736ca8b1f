package claim_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// Rows that a handler leaves open are its own mistake, also where the next statement is another's.
func TestRowsLeftOpenInAGroup(t *testing.T) {
	t.Parallel()
	g := newGrouped(t, claim.Config{})
	h := func(ctx context.Context, id string) error {
		if err := g.effect(ctx, id); err != nil {
			return err
		}
		if id == "b" {
			tx, _ := pgtx.From(ctx)
			_, err := tx.Query(ctx, `select generate_series(1, 10)`) //nolint:sqlclosecheck // the mistake
			return err
		}
		return nil
	}
	left := g.handle(h, letters(5)...)[1]
	g.eventually(func() bool { // it is contended until the group's connection is gone
		if left.err == nil {
			left = g.handle(h, "b")[0]
		}
		return left.err != nil
	}, "its claim is its own")
	require.ErrorContains(t, left.err, "were not closed")
	assert.Equal(t, 1, g.count("claim_failed where event_id = 'b'"))
	assert.Zero(t, g.count("claim_failed where event_id <> 'b'")) // which may be contended until the connection is gone
	assert.Len(t, g.effects(), g.count("processed"))
}

// What a handler has queued may fail while another one is at work, which is not to blame.
func TestQueuedStatementThatFailsUnderAnotherHandler(t *testing.T) {
	t.Parallel()
	for name, see := range map[string]func(ctx context.Context) error{
		"flush": pgtx.Flush,
		"raw": func(ctx context.Context) error {
			tx, _ := pgtx.From(ctx)
			_, err := tx.Exec(ctx, `savepoint mine`)
			return err
		},
		"conn": func(ctx context.Context) error {
			tx, _ := pgtx.From(ctx)
			_, err := tx.Conn().Exec(ctx, `select 1`)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGrouped(t, claim.Config{})
			results := g.handle(func(ctx context.Context, id string) error {
				if err := g.effect(ctx, id); err != nil {
					return err
				}
				switch id {
				case "b":
					return pgtx.Queue(ctx, `select 1/0`)
				case "c", "d":
					return see(ctx)
				}
				return nil
			}, letters(5)...)
			for i, r := range results {
				assert.Equal(t, i != 1, r.acked(), "%d: %v", i, r)
			}
			assert.Zero(t, g.count("claim_failed where event_id <> 'b'"))
			assert.Len(t, g.effects(), g.count("processed"))
		})
	}
}

// Of a handler that has failed nothing happens after the commit of the others.
func TestAfterCommitInAGroup(t *testing.T) {
	t.Parallel()
	g := newGrouped(t, claim.Config{})
	var told []string
	g.handle(func(ctx context.Context, id string) error {
		pgtx.AfterCommit(ctx, func() { told = append(told, id) })
		if id == "b" {
			return errOops
		}
		return g.effect(ctx, id)
	}, letters(3)...)
	assert.Equal(t, []string{"a", "c"}, told)
}

// A group works whatever pgx prepares and remembers.
func TestGroupsInAllModesOfTheDriver(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(c *pgxpool.Config){
		"simple":   func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol },
		"exec":     func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec },
		"describe": func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe },
		"descexec": func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec },
		"small":    func(c *pgxpool.Config) { c.ConnConfig.StatementCacheCapacity = 1 },
	} {
		for _, deferred := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				f := newLonelyFixture(t)
				f.pool = devtest.PoolOn(t, f.pool.Config().ConnString(), change)
				f.store = claim.NewPostgresStore(f.pool, claim.Schema(f.schema))
				g := f.grouped(claim.Config{Deferred: deferred, Ordered: true})
				for range 3 {
					results := g.handle(func(ctx context.Context, id string) error {
						if err := g.effect(ctx, id); err != nil {
							return err
						}
						tx, _ := pgtx.From(ctx)
						switch id {
						case "b":
							_, err := tx.Exec(ctx, `select x from nowhere_at_all where x = $1`, 1)
							return err
						case "d":
							err := pgtx.Run(ctx, f.pool, func(ctx context.Context, tx pgx.Tx) error {
								return pgtx.Run(ctx, f.pool, func(ctx context.Context, tx pgx.Tx) error {
									require.NoError(t, g.effect(ctx, "no"))
									_, err := tx.Exec(ctx, `selec $1`, 1)
									return err
								})
							})
							require.Error(t, err)
							return pgtx.Queue(ctx, `insert into `+f.schema+`.effect values ($1)`, "d2")
						}
						return nil
					}, letters(6)...)
					for i, r := range results {
						assert.Equal(t, i != 1, r.acked(), "%d: %v", i, r)
					}
				}
				assert.Equal(t, map[string]int{"a": 1, "c": 1, "d": 1, "d2": 1, "e": 1, "f": 1}, f.effects())
				assert.Equal(t, 5, f.count("processed"))
			})
		}
	}
}

// A record whose day is missing fails while the next handler's constraints are checked, which is not to blame.
func TestMissingDayUnderDeferrableConstraints(t *testing.T) {
	t.Parallel()
	g := newGrouped(t, claim.Config{})
	_, err := g.pool.Exec(t.Context(), `create table `+g.schema+`.parent (id text primary key);
		create table `+g.schema+`.child (id text references `+g.schema+`.parent deferrable initially deferred)`)
	require.NoError(t, err)
	g.midnight()
	ids := []string{outbox.NewID(), outbox.NewID(), outbox.NewID(), outbox.NewID()}
	results := g.handle(g.effect, ids...)
	for i, r := range results {
		assert.True(t, r.acked(), "%d: %v", i, r)
	}
	assert.Zero(t, g.count("claim_failed"))
	assert.Equal(t, 4, g.count("processed"))
}
