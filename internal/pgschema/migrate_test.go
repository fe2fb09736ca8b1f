package pgschema_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

// Migrations of a line that tests make: the first creates a table, the second alters it.
const (
	one   = `create table {schema}.one (a int)`
	two   = `alter table {schema}.one add column b int`
	three = `create table {schema}.three (a int)`
)

// line is a component with these migrations, each with a way back.
func line(ups ...string) pgschema.Line {
	files := fstest.MapFS{}
	downs := []string{`drop table {schema}.one`, `alter table {schema}.one drop column b`, `drop table {schema}.three`}
	for i, name := range []string{"001_one", "002_two", "003_three"}[:len(ups)] {
		files["migrations/"+name+".up.sql"] = &fstest.MapFile{Data: []byte(ups[i])}
		files["migrations/"+name+".down.sql"] = &fstest.MapFile{Data: []byte(downs[i])}
	}
	return pgschema.Line{Component: "test", Files: files, Command: "test.Migrate"}
}

type fixture struct {
	t      *testing.T
	pool   *pgxpool.Pool
	schema string
}

func newFixture(t *testing.T) fixture {
	return fixture{t, devtest.Pool(t), devtest.Schema(t)}
}

func (f fixture) in(l pgschema.Line) *pgschema.Migrator {
	m, err := l.In(f.pool, f.schema)
	require.NoError(f.t, err)
	m.Logger = slog.New(slog.DiscardHandler)
	return m
}

// applied returns the versions that are there.
func (f fixture) applied(l pgschema.Line) (versions []int) {
	all, err := f.in(l).Status(f.t.Context())
	require.NoError(f.t, err)
	for i, m := range all {
		assert.Equal(f.t, i+1, m.Version)
		if m.AppliedAt != nil {
			versions = append(versions, m.Version)
		}
	}
	return versions
}

// A migration that fails leaves the schema as it was, and the next run goes on where the last one succeeded.
func TestUpIsAllOrNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	assert.Empty(t, f.applied(line(one)), "there is no table of migrations yet")
	require.NoError(t, f.in(line(one)).Up(t.Context()))
	assert.Equal(t, []int{1}, f.applied(line(one, two, three)))

	broken := line(one, two, `nonsense`)
	require.ErrorContains(t, f.in(broken).Up(t.Context()), "migration 3 (three)")
	require.ErrorContains(t, broken.Check(t.Context(), f.pool, f.schema),
		`is at version 1 of test, this program needs 3: run "millrace migrate up" or test.Migrate`)

	require.NoError(t, f.in(line(one, two, three)).Up(t.Context()))
	require.NoError(t, line(one, two, three).Check(t.Context(), f.pool, f.schema))
	assert.Equal(t, []int{1, 2, 3}, f.applied(line(one, two, three)))
	_, err := f.pool.Exec(t.Context(), `select b from `+f.schema+`.one, `+f.schema+`.three`)
	require.NoError(t, err)
}

func TestDown(t *testing.T) {
	t.Parallel()
	f, l := newFixture(t), line(one, two, three)
	require.NoError(t, f.in(l).Down(t.Context(), 0, false), "nothing is there")
	require.NoError(t, f.in(l).Up(t.Context()))
	require.ErrorContains(t, f.in(l).Down(t.Context(), 4, false), "want 0 to 3")
	require.ErrorContains(t, f.in(line(one, two)).Down(t.Context(), 1, false), "run the program that knows the way back")
	require.NoError(t, f.in(l).Down(t.Context(), 1, false))
	assert.Equal(t, []int{1}, f.applied(l))

	l.BeforeDown = func(_ context.Context, _ pgx.Tx, d pgschema.Descent) error {
		assert.Equal(t, pgschema.Descent{Schema: f.schema, From: 1, To: 0, Force: d.Force}, d)
		if d.Force {
			return nil
		}
		return errors.New("no")
	}
	require.ErrorContains(t, f.in(l).Down(t.Context(), 0, false), "no")
	require.NoError(t, f.in(l).Down(t.Context(), 0, true))
	assert.Empty(t, f.applied(l))
	require.NoError(t, f.in(l).Up(t.Context()), "and up again")
}

func TestMigrationsAreNumberedWithoutGaps(t *testing.T) {
	t.Parallel()
	gap := pgschema.Line{Component: "test", Files: fstest.MapFS{
		"migrations/001_one.up.sql": {}, "migrations/001_one.down.sql": {}, "migrations/003_three.up.sql": {},
	}}
	f := newFixture(t)
	require.ErrorContains(t, f.in(gap).Up(t.Context()), "migrations/003_three.up.sql of test: want number 002")
	oneWay := pgschema.Line{Component: "test", Files: fstest.MapFS{"migrations/001_one.up.sql": {}}}
	require.ErrorContains(t, f.in(oneWay).Up(t.Context()), "has no way back")
}

// In a rolling deploy programs of two versions run beside each other, where the newer migrations allow it.
func TestOlderProgramsBesideANewerSchema(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		schema   pgschema.Line
		accepted []bool // by programs that know 1, 2, 3 migrations
	}{
		{"silent", line(one, two, three), []bool{false, false, true}},
		{"the last allows its predecessor", line(one, two, "-- oldest program: 2\n"+three), []bool{false, true, true}},
		{"both allow the first", line(one, "-- oldest program: 1\n"+two, "-- oldest program: 1\n"+three), []bool{true, true, true}},
		{"one in between does not", line(one, two, "-- oldest program: 1\n"+three), []bool{false, true, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			require.NoError(t, f.in(c.schema).Up(t.Context()))
			for i, accepted := range c.accepted {
				program := line([]string{one, two, three}[:i+1]...)
				err := program.Check(t.Context(), f.pool, f.schema)
				if accepted {
					assert.NoError(t, err, i+1)
				} else {
					assert.ErrorContains(t, err, "run a newer program", i+1)
				}
				assert.NoError(t, f.in(program).Up(t.Context()), "an older program changes nothing")
			}
			assert.Equal(t, []int{1, 2, 3}, f.applied(line(one)), "unknown ones are told too")
		})
	}
}

// A table of migrations from before the column was there.
func TestUpAddsWhatOlderProgramsDidNotRecord(t *testing.T) {
	t.Parallel()
	f, l := newFixture(t), line(one, "-- oldest program: 1\n"+two)
	require.NoError(t, f.in(l).Up(t.Context()))
	_, err := f.pool.Exec(t.Context(), `alter table `+f.schema+`.migration drop column oldest`)
	require.NoError(t, err)
	require.NoError(t, l.Check(t.Context(), f.pool, f.schema))
	require.ErrorContains(t, line(one).Check(t.Context(), f.pool, f.schema), "run a newer program")
	require.NoError(t, f.in(l).Up(t.Context()))
	require.NoError(t, line(one).Check(t.Context(), f.pool, f.schema))
}

// told is a log handler that calls a function instead.
type told struct {
	slog.Handler
	f func(slog.Record)
}

func (h told) Handle(_ context.Context, r slog.Record) error { h.f(r); return nil }
func (told) Enabled(context.Context, slog.Level) bool        { return true }

func TestUpWaitsForALock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.NoError(t, f.in(line(one)).Up(t.Context()))
	holder, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = holder.Rollback(context.Background()) }()
	_, err = holder.Exec(t.Context(), `select from `+f.schema+`.one`)
	require.NoError(t, err)

	m := f.in(line(one, two))
	m.LockTimeout, m.Patience = 20*time.Millisecond, 10*time.Millisecond
	err = m.Up(t.Context())
	require.ErrorContains(t, err, "no lock within 10ms")
	require.ErrorContains(t, err, "idle in transaction")
	require.ErrorContains(t, err, "AccessShareLock on one")

	m.Patience = time.Minute
	waits := 0
	m.Logger = slog.New(told{slog.DiscardHandler, func(slog.Record) {
		if waits++; waits == 2 {
			require.NoError(t, holder.Rollback(context.Background()))
		}
	}})
	require.NoError(t, m.Up(t.Context()))
	assert.GreaterOrEqual(t, waits, 2)
	assert.Equal(t, []int{1, 2}, f.applied(line(one, two)))
}

// Inside a transaction of the caller's, whose settings stay as they were.
func TestUpJoinsATransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	oops := errors.New("oops")
	require.ErrorIs(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
		require.NoError(t, f.in(line(one)).Up(ctx))
		var timeout string
		require.NoError(t, tx.QueryRow(ctx, `select current_setting('lock_timeout')`).Scan(&timeout))
		assert.Equal(t, "0", timeout)
		return oops
	}), oops)
	assert.Empty(t, f.applied(line(one)))
}

func TestSQLIsWhatRuns(t *testing.T) {
	t.Parallel()
	f, l := newFixture(t), line(one, two, "-- oldest program: 2\n"+three)
	run := func(from, to int) {
		sql, err := f.in(l).SQL(from, to)
		require.NoError(t, err)
		_, err = f.pool.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	run(0, 2)
	assert.Equal(t, []int{1, 2}, f.applied(l))
	run(2, 3)
	require.NoError(t, l.Check(t.Context(), f.pool, f.schema))
	require.NoError(t, line(one, two).Check(t.Context(), f.pool, f.schema))
	run(3, 1)
	assert.Equal(t, []int{1}, f.applied(l))
	require.NoError(t, f.in(l).Up(t.Context()))
	run(3, 0)
	assert.Empty(t, f.applied(l))

	_, err := f.in(l).SQL(0, 4)
	require.ErrorContains(t, err, "want 0 to 3")
	sql, err := f.in(l).SQL(2, 2)
	require.NoError(t, err)
	assert.Empty(t, sql)
}
