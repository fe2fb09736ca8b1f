package claim_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/pgtx"
)

// leavings are what a handler leaves in its transaction, or to the end of its session.
var leavings = map[string]func(g *grouped, ctx context.Context, tx pgx.Tx) error{
	"SET LOCAL":         leaving(`set local search_path = pg_catalog`),
	"SET":               leaving(`set statement_timeout = '59s'`),
	"a role":            leaving(`set local role pg_monitor`),
	"a setting's reset": leaving(`/* now */ reset statement_timeout; set local statement_timeout = 58000`),
	"in a text":         leaving(`select ';'; set local app.tenant = 'b'`),
	"in a DO":           leaving(`do $$ begin set local app.tenant = 'b'; end $$`),
	"a table":           leaving(`create temporary table scratch (n int)`),
	"a table by SELECT": leaving("select 1 as n\ninto temp scratch"),
	"a table by schema": leaving(`create table pg_temp.scratch (n int)`),
	"a cursor":          leaving(`declare c cursor for select 1`),
	"set_config": func(_ *grouped, ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `select set_config('app.tenant', $1, true)`, "b")
		return err
	},
	"in a query": func(_ *grouped, ctx context.Context, tx pgx.Tx) error {
		var s string
		return tx.QueryRow(ctx, `select Set_Config('app.tenant', 'b', true)`).Scan(&s)
	},
	"in a batch": func(_ *grouped, ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(`select 1`)
		b.Queue(`set local app.tenant = 'b'`)
		return tx.SendBatch(ctx, b).Close()
	},
	"queued": func(_ *grouped, ctx context.Context, _ pgx.Tx) error {
		return pgtx.Queue(ctx, `select set_config('app.tenant', $1, true)`, "b")
	},
	"in a nested Run": func(g *grouped, ctx context.Context, _ pgx.Tx) error {
		return pgtx.Run(ctx, g.pool, func(ctx context.Context, tx pgx.Tx) error {
			return leaving(`set local app.tenant = 'b'`)(g, ctx, tx)
		})
	},
	"on the connection itself": func(_ *grouped, ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Conn().Exec(ctx, `set local app.tenant = 'b'`)
		return err
	},
	"a function":                leaving(`select be_tenant()`),
	"a trigger":                 leaving(`insert into tenants values ('b')`),
	"a function's function":     leaving(`select be_tenant_too()`),
	"a function, queued":        func(_ *grouped, ctx context.Context, _ pgx.Tx) error { return pgtx.Queue(ctx, `select be_tenant()`) },
	"a function's SET":          leaving(`select hurry()`),
	"a function's table":        leaving(`select make_scratch()`),
	"a function in SQL's words": leaving(`select be_tenant_plainly()`),
}

func leaving(sql string) func(*grouped, context.Context, pgx.Tx) error {
	return func(_ *grouped, ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql)
		return err
	}
}

// withFunctions makes functions that leave something in their transaction.
func (g *grouped) withFunctions() {
	g.exec(`
		create function be_tenant() returns void language plpgsql as $$ begin perform set_config('app.tenant', 'b', true); end $$;
		create function be_tenant_too() returns void language sql as 'select be_tenant()';
		create function be_tenant_plainly() returns text begin atomic; select set_config('app.tenant', 'b', true); end;
		create function hurry() returns void language plpgsql as $$ begin set local statement_timeout = 57000; end $$;
		create function make_scratch() returns void language plpgsql as $$ begin create temp table scratch (n int) on commit drop; end $$;
		create table tenants (name text);
		create function be_tenant_by_trigger() returns trigger language plpgsql as $$ begin perform be_tenant(); return new; end $$;
		create trigger t before insert on tenants for each row execute function be_tenant_by_trigger()`)
}

const leftBehind = `select concat_ws('|', current_setting('search_path'), current_setting('role'), current_setting('statement_timeout'),
	nullif(current_setting('app.tenant', true), ''), to_regclass('pg_' || 'temp.scratch'), (select string_agg(name, ',') from pg_cursors where name = 'c'))`

func stateIn(t testing.TB, ctx context.Context, tx pgx.Tx) (s string) {
	require.NoError(t, tx.QueryRow(ctx, leftBehind).Scan(&s))
	return s
}

// A handler's SET LOCAL reached the other handlers of its group: the rows of one tenant were shown to another.
func TestGroupState(t *testing.T) {
	t.Parallel()
	lonely := newGrouped(t, claim.Config{})
	lonely.withFunctions()
	n := 0
	for name, leave := range leavings {
		n++
		schema := fmt.Sprint("case_", n)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			g := lonely.beside(t, schema).grouped(claim.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			var states []string
			results := g.handle(func(ctx context.Context, id string) error {
				tx, _ := pgtx.From(ctx)
				states = append(states, stateIn(t, ctx, tx))
				if err := g.effect(ctx, id); err != nil || id != "b" {
					return err
				}
				return leave(g, ctx, tx)
			}, letters(4)...)
			for i, r := range results {
				assert.True(t, r.acked(), "%d: %v", i, r)
			}
			assert.Equal(t, []string{"a", "b", "c", "d", "b"}, g.ran, "b is handled alone in the end")
			for i, s := range states {
				assert.Equal(t, states[0], s, g.ran[i])
			}
			assert.Equal(t, map[string]int{"a": 1, "b": 1, "c": 1, "d": 1}, g.effects())
			assert.Contains(t, log.String(), "Config.Group")
		})
	}

	t.Run("control", func(t *testing.T) { // what PostgreSQL does of itself, but for the statement that is queued
		t.Parallel()
		for name, leave := range leavings {
			require.ErrorIs(t, pgtx.Run(t.Context(), lonely.pool, func(ctx context.Context, tx pgx.Tx) error {
				before := stateIn(t, ctx, tx)
				require.NoError(t, pgtx.Run(ctx, lonely.pool, func(ctx context.Context, tx pgx.Tx) error { return leave(lonely, ctx, tx) }))
				require.NoError(t, pgtx.Flush(ctx))
				assert.NotEqual(t, before, stateIn(t, ctx, tx), name)
				return errOops // nothing stays in the session
			}), errOops, name)
		}
	})
}

// What leaves nothing costs nothing: no event is handled alone.
func TestGroupStateOfHonestHandlers(t *testing.T) {
	t.Parallel()
	g := newGrouped(t, claim.Config{})
	g.withFunctions()
	g.exec(`create table account (id text, role text, temp int)`)
	g.handle(func(ctx context.Context, id string) error {
		tx, _ := pgtx.From(ctx)
		_, err := tx.Exec(ctx, `insert into account (id) values ('set local x = 1; reset all'); update account set role = 'none', temp = 1; set constraints all deferred`)
		if err != nil {
			return err
		}
		_ = pgtx.Run(ctx, g.pool, func(context.Context, pgx.Tx) error { return errOops })
		return g.effect(ctx, id)
	}, letters(4)...)
	assert.Equal(t, letters(4), g.ran)
}

// Where most events have to be handled alone, a group would only run their handlers twice.
func TestGroupStateOfEveryEvent(t *testing.T) {
	t.Parallel()
	g := newGrouped(t, claim.Config{Logger: silent})
	n := 0
	run := func(count int) int {
		g.ran = nil
		var ids []string
		for range count {
			n++
			ids = append(ids, fmt.Sprint(n))
		}
		g.handle(func(ctx context.Context, id string) error {
			tx, _ := pgtx.From(ctx)
			if _, err := tx.Exec(ctx, `set local app.tenant = 'x'`); err != nil {
				return err
			}
			return g.effect(ctx, id)
		}, ids...)
		return len(g.ran)
	}
	assert.Equal(t, 40, run(20))
	assert.Equal(t, 1, run(1), "from now on they are not grouped")
	assert.Len(t, g.effects(), 21)
}

// The look at what functions leave is two round trips for each handler but the first, which sends what waits with one less; and only
// where the database has such functions.
func TestGroupStateRoundTrips(t *testing.T) {
	t.Parallel()
	f := newLonelyFixture(t)
	pool, counter := devtest.CountedPool(t, func(c *pgxpool.Config) { c.ConnConfig.Database = f.pool.Config().ConnConfig.Database })
	g := (&fixture{t: t, pool: pool, schema: f.schema, store: claim.NewPostgresStore(pool, claim.Schema(f.schema))}).grouped(claim.Config{})
	g.withFunctions()
	n := 0
	run := func() {
		n++
		var ids []string
		for i := range 10 {
			ids = append(ids, fmt.Sprint(n, "-", i))
		}
		for _, r := range g.handle(g.effect, ids...) {
			assert.True(t, r.acked(), "%v", r)
		}
	}
	run()
	assert.Equal(t, 31, counter.Of(run), "12 in a database without such functions: see TestRoundTripsOfAGroup")
}
