package pgdays

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

func TestMain(m *testing.M) { devtest.Main(m) }

type fixture struct {
	*testing.T
	pool  *pgxpool.Pool
	table Table
}

// newFixture has a table with the days of 1 to 3 March 2020 and what is before them.
func newFixture(t *testing.T) *fixture {
	f := &fixture{T: t, pool: devtest.Pool(t), table: Table{devtest.Schema(t), "seen"}}
	f.exec(`create table {schema}.seen (id uuid primary key) partition by range (id)`)
	f.exec(`create table {schema}.seen_old partition of {schema}.seen for values from (minvalue) to (` + start(1) + `)`)
	for day := range 3 {
		f.exec(fmt.Sprintf(`create table {schema}.seen_2020030%d partition of {schema}.seen for values from (%s) to (%s)`, day+1, start(day+1), start(day+2)))
	}
	return f
}

func march(day int) time.Time { return time.Date(2020, 3, day, 0, 0, 0, 0, time.UTC) }

func start(day int) string { return "'" + id(day)[:13] + "-0000-0000-000000000000'" }

// id is an UUIDv7 of that day's start.
func id(day int) string {
	ms := fmt.Sprintf("%012x", march(day).UnixMilli())
	return ms[:8] + "-" + ms[8:] + "-7000-8000-000000000000"
}

func (f *fixture) exec(sql string) {
	_, err := f.pool.Exec(context.Background(), strings.ReplaceAll(sql, "{schema}", f.table.Schema))
	require.NoError(f, err)
}

func (f *fixture) days() (names []string) {
	days, err := f.table.Days(f.Context(), f.pool)
	require.NoError(f, err)
	for _, d := range days {
		names = append(names, d.Partition)
	}
	return names
}

func TestDays(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`create table {schema}.seen_other (id int)`)
	days, err := f.table.Days(t.Context(), f.pool)
	require.NoError(t, err)
	require.Len(t, days, 4)
	assert.Equal(t, "seen_old", days[0].Partition)
	assert.Equal(t, march(1), days[0].End(), "where its range ends")
	for i, d := range days[1:] {
		assert.Equal(t, march(i+1), d.Date)
		assert.Positive(t, d.Bytes)
		assert.Zero(t, d.Rows)
	}
}

func TestAheadCallsTheTablesFunction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.ErrorContains(t, f.table.Ahead(t.Context(), f.pool), "make days of seen")
	f.exec(`create table {schema}.asked (ahead int)`)
	f.exec(`create function {schema}.seen_days(ahead int) returns void language sql as 'insert into {schema}.asked values ($1)'`)
	require.NoError(t, f.table.Ahead(t.Context(), f.pool))
	var asked int
	require.NoError(t, f.pool.QueryRow(t.Context(), `select ahead from `+f.table.Schema+`.asked`).Scan(&asked))
	assert.Equal(t, 7, asked)
}

func TestDropTakesWhatHasEnded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	none, err := f.table.Drop(t.Context(), f.pool, march(1).Add(-time.Second))
	require.NoError(t, err)
	assert.Empty(t, none)
	dropped, err := f.table.Drop(t.Context(), f.pool, march(3))
	require.NoError(t, err)
	assert.Len(t, dropped, 3)
	assert.Equal(t, []string{"seen_20200303"}, f.days())
}

// A writer's transaction stays open while a day is dropped: others write on, and the drop follows its end.
func TestDropBlocksNobody(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	writer, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	insert := `insert into ` + f.table.Schema + `.seen values ($1)`
	_, err = writer.Exec(t.Context(), insert, id(3))
	require.NoError(t, err)
	dropped := make(chan error, 1)
	go func() {
		_, err := f.table.Drop(context.Background(), f.pool, march(2))
		dropped <- err
	}()
	f.waitForPending()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = f.pool.Exec(ctx, insert, strings.Replace(id(3), "-8000-", "-8001-", 1))
	require.NoError(t, err)
	require.NoError(t, writer.Commit(t.Context()))
	require.NoError(t, <-dropped)
	assert.Equal(t, []string{"seen_20200302", "seen_20200303"}, f.days())
}

func (f *fixture) waitForPending() {
	require.Eventually(f, func() bool {
		var pending bool
		err := f.pool.QueryRow(context.Background(), `select exists (select from pg_inherits where inhparent = $1::regclass and inhdetachpending)`,
			f.table.name(f.table.Name)).Scan(&pending)
		return err == nil && pending
	}, time.Minute, 5*time.Millisecond)
}

// A process dies between the steps: the next drop does the rest.
func TestDropFinishesWhatWasInterrupted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	writer, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = writer.Exec(t.Context(), `insert into `+f.table.Schema+`.seen values ($1)`, id(3))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	dropped := make(chan error, 1)
	go func() {
		_, err := f.table.Drop(ctx, f.pool, march(2))
		dropped <- err
	}()
	f.waitForPending()
	cancel()
	require.ErrorIs(t, <-dropped, context.Canceled)
	require.Eventually(t, func() bool { // the server learns of it by a request of its own
		var busy bool
		err := f.pool.QueryRow(t.Context(), `select exists (select from pg_stat_activity where query like 'alter table%' || $1 || '%' and state = 'active')`,
			f.table.Schema).Scan(&busy)
		return err == nil && !busy
	}, time.Minute, 5*time.Millisecond)
	require.NoError(t, writer.Rollback(t.Context()))

	f.exec(`alter table {schema}.seen detach partition {schema}.seen_20200302`) // and one whose DROP never came
	assert.Contains(t, f.days(), "seen_old", "still to be finished")
	_, err = f.table.Drop(t.Context(), f.pool, march(3))
	require.NoError(t, err)
	assert.Equal(t, []string{"seen_20200303"}, f.days())
	all, err := f.table.all(t.Context(), f.pool)
	require.NoError(t, err)
	assert.Len(t, all, 1)
}

// Somebody has detached a day to mend or to move it: it was dropped, whatever its age.
func TestDropLeavesYoungTablesAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`alter table {schema}.seen detach partition {schema}.seen_20200303`)
	f.exec(`create table {schema}.seen_20200304 (id int)`)
	dropped, err := f.table.Drop(t.Context(), f.pool, march(3))
	require.NoError(t, err)
	assert.Len(t, dropped, 3, "seen_old and two days have ended")
	all, err := f.table.all(t.Context(), f.pool)
	require.NoError(t, err)
	require.Len(t, all, 2)
	assert.Equal(t, []string{"seen_20200303", "seen_20200304"}, []string{all[0].Partition, all[1].Partition})
	_, err = f.table.Drop(t.Context(), f.pool, march(4))
	require.NoError(t, err)
	all, err = f.table.all(t.Context(), f.pool)
	require.NoError(t, err)
	require.Len(t, all, 1, "its time is over")
	assert.Equal(t, "seen_20200304", all[0].Partition)
}

// Several processes keep house at once.
func TestDropIsFinishedByOneOfMany(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	results := make(chan error)
	for range 4 {
		go func() {
			_, err := f.table.Drop(context.Background(), f.pool, march(3))
			results <- err
		}()
	}
	for range 4 {
		assert.NoError(t, <-results)
	}
	require.Eventually(t, func() bool {
		_, err := f.table.Drop(t.Context(), f.pool, march(3))
		return err == nil && len(f.days()) == 1
	}, time.Minute, 10*time.Millisecond)
}

func TestDropByAnotherRole(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	role := f.table.Schema + "_r"
	f.exec(`create role ` + role + `; grant usage on schema {schema} to ` + role)
	t.Cleanup(func() { f.exec(`drop owned by ` + role + `; drop role ` + role) })
	other := devtest.PoolOn(t, f.pool.Config().ConnString(), func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["role"] = role })
	_, err := f.table.Drop(t.Context(), other, march(2))
	require.ErrorIs(t, err, ErrNotOwner)
	require.ErrorIs(t, f.table.Owned(t.Context(), other), ErrNotOwner)
	require.NoError(t, f.table.Owned(t.Context(), f.pool))
	require.ErrorContains(t, Table{f.table.Schema, "nothing"}.Owned(t.Context(), f.pool), "migrate up")
	assert.Len(t, f.days(), 4)
}

func TestEvery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		var at []time.Duration
		err := Every(ctx, slog.New(slog.DiscardHandler), "it", func(context.Context) error {
			at = append(at, time.Since(began))
			switch len(at) {
			case 1:
				return errors.New("oops")
			case 3:
				cancel()
			}
			return nil
		})
		require.NoError(t, err)
		require.Len(t, at, 3)
		assert.Zero(t, at[0], "at once")
		assert.InDelta(t, time.Minute, at[1], float64(10*time.Second), "sooner after an error")
		assert.InDelta(t, time.Hour, at[2]-at[1], float64(10*time.Minute))
	})
}
