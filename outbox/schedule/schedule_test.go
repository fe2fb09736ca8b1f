package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/internal/role"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

func TestEveryStatementPrepares(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	conn, err := f.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	require.NoError(t, pgschema.Prepare(t.Context(), conn.Conn(), files, f.schema))
}

// run runs schedulers until stop is called, which waits for them.
func (f *fixture) run(schedulers ...*Scheduler) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, s := range schedulers {
		running.Go(func() { assert.NoError(f.t, s.Run(ctx)) })
	}
	stop = func() {
		cancel()
		running.Wait()
	}
	f.t.Cleanup(stop)
	return stop
}

func (f *fixture) atLeast(n int) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return len(f.fired()) >= n }, wait, 20*time.Millisecond, "%d events", n)
}

func TestScheduleFiresOnceInAFleet(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var fleet []*Scheduler
	for range 5 {
		fleet = append(fleet, f.scheduler(report(Times{Expression: everySecond, Missed: CatchUp})))
	}
	stop := f.run(fleet...)
	f.atLeast(4)
	stop()
	f.eachSecondOnce()
	found, err := List(t.Context(), f.pool, f.schema)
	require.NoError(t, err)
	require.Len(t, found, 1)
	times := f.fired()
	assert.Equal(t, times[len(times)-1], found[0].Next.Add(-time.Second).UTC().Format(time.RFC3339))
	assert.False(t, found[0].FiredAt.Before(found[0].Next.Add(-time.Second)))
}

// Without the lock on the row, two processes fire one time: the test above can fail.
func TestScheduleWithoutTheLockFiresTwice(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.look(Times{Expression: newYear})
	f.missedSince(longAgo)
	meeting := sync.WaitGroup{}
	meeting.Add(2)
	e := report(Times{Expression: newYear})
	inner := e.Message
	e.Message = func(at time.Time) (*message.Message, error) {
		meeting.Done()
		meeting.Wait() // both transactions have read the row
		return inner(at)
	}
	var both sync.WaitGroup
	for range 2 {
		s := f.scheduler(e)
		s.sql.take = pgschema.Render(`select now(), due_after, true from {schema}.schedule where service = $1 and name = $2 and $3::timestamptz is null`, f.schema)
		both.Go(func() {
			_, err := s.fire(t.Context(), s.entries[0], time.Time{})
			assert.NoError(t, err)
		})
	}
	both.Wait()
	times := f.fired()
	require.Len(t, times, 2)
	assert.Equal(t, times[0], times[1])
}

// stalls is the role of a process that stops for ever while it fires, with the row locked.
const stalls = "stalls"

type stallsConfig struct{ DSN, Schema string }

func playStalls(ctx context.Context, c stallsConfig, _ <-chan string) error {
	pool, err := pgxpool.New(ctx, c.DSN)
	if err != nil {
		return err
	}
	defer pool.Close()
	e := report(Times{Expression: everySecond, Missed: CatchUp})
	e.Message = func(time.Time) (*message.Message, error) {
		fmt.Println("firing")
		<-ctx.Done()
		return nil, ctx.Err()
	}
	s, err := open(pool, c.Schema, slog.DiscardHandler, e)
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// said closes its channel when a process has said something.
type said struct {
	once  sync.Once
	spoke chan struct{}
}

func (s *said) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.spoke) })
	return len(p), nil
}

// Processes are killed in the transaction that fires. Another process fires those times, and none twice.
func TestScheduleProcessKilledWhileFiring(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run(f.scheduler(report(Times{Expression: everySecond, Missed: CatchUp})))
	f.atLeast(1)
	for range 3 {
		heard := &said{spoke: make(chan struct{})}
		p, err := role.Start(stalls, stallsConfig{f.pool.Config().ConnString(), f.schema}, heard, t.Output())
		require.NoError(t, err)
		t.Cleanup(func() { p.Kill() })
		select {
		case <-heard.spoke:
		case <-time.After(2 * wait):
			require.Fail(t, "the process never fires")
		}
		before := len(f.fired())
		require.True(t, p.Kill())
		f.atLeast(before + 2)
	}
	f.eachSecondOnce()
}

// After an outage a schedule fires for the latest missed time, or for each.
func TestScheduleAfterAnOutage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		times Times
		want  func(missed []string) []string
	}{
		"skip":           {Times{}, func(missed []string) []string { return missed[len(missed)-1:] }},
		"catch up":       {Times{Missed: CatchUp}, func(missed []string) []string { return missed }},
		"catch up a few": {Times{Missed: CatchUp, MaxMissed: 2}, func(missed []string) []string { return missed[len(missed)-2:] }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c.times.Expression = newYear
			f.look(c.times)
			require.Empty(t, f.fired(), "a new schedule begins now")
			f.missedSince(longAgo)
			f.look(c.times)
			require.Equal(t, c.want(f.years()), f.fired())
			f.look(c.times)
			require.Equal(t, c.want(f.years()), f.fired(), "and no second time")
		})
	}
}

// A schedule with another expression or zone begins now: it does not fire for its own times that nobody has missed. What the earlier
// expression has missed is fired first.
func TestScheduleWithAChangedExpression(t *testing.T) {
	t.Parallel()
	const july = "0 0 1 7 *"
	for name, c := range map[string]struct{ before, after Times }{
		"another expression": {Times{Expression: newYear}, Times{Expression: july}},
		"another zone":       {Times{Expression: newYear}, Times{Expression: newYear, TimeZone: "Pacific/Auckland"}},
	} {
		for missed, want := range map[Missed]func(years []string) []string{
			Skip:    func(years []string) []string { return years[len(years)-1:] },
			CatchUp: func(years []string) []string { return years },
		} {
			t.Run(name+", "+missed.String(), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				f.look(c.before)
				require.Empty(t, f.fired())
				f.missedSince(longAgo)
				c.after.Missed = missed
				for range 2 {
					f.look(c.after)
					require.Equal(t, want(f.years()), f.fired())
				}
				f.look(c.before)
				require.Equal(t, want(f.years()), f.fired(), "and not again after a rollback")
				f.look(c.after)
				found, err := List(t.Context(), f.pool, f.schema)
				require.NoError(t, err)
				assert.Equal(t, []string{c.after.Expression, c.after.TimeZone}, []string{found[0].Expression, strings.TrimPrefix(found[0].TimeZone, "UTC")})
				assert.Zero(t, found[0].Overdue())
			})
		}
	}
}

// A process with another expression starts when a time of the earlier one has come, and no process has looked yet. It once left that
// time out: it was over for both expressions.
func TestScheduleChangesWhenATimeIsDue(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	before, after := f.scheduler(report(Times{Expression: newYear})), f.scheduler(report(Times{Expression: "0 0 1 */6 *"}))
	slow, p := &progress{}, &progress{}
	_, err := before.look(t.Context(), before.entries[0], slow)
	require.NoError(t, err)
	f.missedSince(longAgo)
	slow.due = time.Now() // it will look in a moment
	_, err = after.look(t.Context(), after.entries[0], p)
	require.NoError(t, err)
	_, err = before.look(t.Context(), before.entries[0], slow)
	require.NoError(t, err)
	years := f.years()
	assert.Equal(t, years[len(years)-1:], f.fired())
}

// What the stored expression was, this program may not know: then the schedule begins now.
func TestScheduleWithAnExpressionThatCannotBeRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.look(Times{Expression: newYear})
	f.missedSince(longAgo)
	f.exec(`update {schema}.schedule set expression = 'each new year'`)
	f.look(Times{Expression: newYear, Missed: CatchUp})
	assert.Empty(t, f.fired())
}

// A new expression begins although Message refuses the times of the earlier one. Each start tried them again, for a year.
func TestScheduleWhoseEarlierTimesAreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.look(Times{Expression: newYear})
	f.missedSince(longAgo)
	picky := report(Times{Expression: everySecond, Missed: CatchUp})
	made := picky.Message
	picky.Message = func(at time.Time) (*message.Message, error) {
		if at.YearDay() == 1 {
			return nil, errors.New("what time is this?")
		}
		return made(at)
	}
	stop := f.run(f.scheduler(picky))
	f.atLeast(2)
	stop()
	f.eachSecondOnce()
}

// While a fleet has two expressions, the processes of both fire, and a time that is common to both is fired once.
func TestScheduleWithTwoExpressionsAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	stop := f.run(f.scheduler(report(Times{Expression: everySecond, Missed: CatchUp})), f.scheduler(report(Times{Expression: "*/2 * * * * *", Missed: CatchUp})))
	f.atLeast(4)
	stop()
	f.eachSecondOnce()
}

// What was removed from the program stays in the table, is overdue, and does nothing, until it is forgotten.
func TestScheduleRemoved(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.look(Times{Expression: newYear})
	f.missedSince(longAgo)
	found, err := List(t.Context(), f.pool, f.schema)
	require.NoError(t, err)
	require.Len(t, found, 1)
	assert.Equal(t, "2021-01-01T00:00:00Z", found[0].Next.UTC().Format(time.RFC3339))
	assert.Greater(t, found[0].Overdue(), 5*365*24*time.Hour)

	require.NoError(t, Forget(t.Context(), f.pool, f.schema, "billing", "report"))
	require.ErrorIs(t, Forget(t.Context(), f.pool, f.schema, "billing", "report"), ErrNoSuchSchedule)
	f.look(Times{Expression: newYear, Missed: CatchUp})
	assert.Empty(t, f.fired(), "it begins when it is added again")
}

// A process may see late that another one fired a time. If the next time has passed by then, and nobody has fired it, it fires it.
func TestScheduleSeenLate(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.look(Times{Expression: newYear})
	f.missedSince(longAgo)
	s := f.scheduler(report(Times{Expression: newYear}))
	known := &progress{registered: true, due: time.Date(2020, time.January, 1, 0, 0, 0, 0, time.UTC)} // which another process fired
	again, err := s.look(t.Context(), s.entries[0], known)
	require.NoError(t, err)
	assert.LessOrEqual(t, again, time.Duration(0))
	_, err = s.look(t.Context(), s.entries[0], known)
	require.NoError(t, err)
	assert.Len(t, f.fired(), 1)
}

// A process whose schedule was forgotten goes on where it was.
func TestScheduleForgottenWhileItRuns(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run(f.scheduler(report(Times{Expression: everySecond, Missed: CatchUp})))
	f.atLeast(1)
	require.NoError(t, Forget(t.Context(), f.pool, f.schema, "billing", "report"))
	f.atLeast(len(f.fired()) + 2)
	f.eachSecondOnce()
}

// A database that was restored fires again, and the event is the same one.
func TestScheduleInARestoredDatabase(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.look(Times{Expression: newYear})
	for range 2 {
		f.missedSince(longAgo)
		f.look(Times{Expression: newYear})
	}
	times := f.fired() // which checks the IDs
	require.Len(t, times, 2)
	assert.Equal(t, times[0], times[1])
}

// A schedule whose event cannot be made, or published, fires when it can.
func TestScheduleThatFails(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := report(Times{Expression: newYear})
	good := e.Message
	s := f.scheduler(e)
	p := &progress{}
	_, err := s.look(t.Context(), s.entries[0], p)
	require.NoError(t, err)
	f.missedSince(longAgo)
	p.due = time.Now() // as if it had come
	for want, bad := range map[string]func(time.Time) (*message.Message, error){
		"no report":      func(time.Time) (*message.Message, error) { return nil, errors.New("no report") },
		"panic: oh":      func(time.Time) (*message.Message, error) { panic("oh") },
		"message is nil": func(time.Time) (*message.Message, error) { return nil, nil },
		"invalid message": func(at time.Time) (*message.Message, error) {
			m, err := good(at)
			m.Metadata.Set("\x00", "")
			return m, err
		},
	} {
		s.entries[0].Message = bad
		_, err := s.look(t.Context(), s.entries[0], p)
		require.ErrorContains(t, err, want)
		require.Empty(t, f.fired())
	}
	s.entries[0].Message = good
	_, err = s.look(t.Context(), s.entries[0], p)
	require.NoError(t, err)
	assert.Len(t, f.fired(), 1)

	f.exec(`drop table {schema}.schedule`)
	_, err = s.look(t.Context(), s.entries[0], &progress{})
	require.ErrorContains(t, err, `run schedule.Migrate or "millrace migrate up"`)
}

// While a process has the row, others look again soon, and wait for nothing. When the time was fired, they wait for the next one.
func TestScheduleRowIsBusy(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.look(Times{Expression: newYear})
	f.missedSince(longAgo)
	s := f.scheduler(report(Times{Expression: newYear}))
	first, second := &progress{registered: true}, &progress{registered: true, due: time.Now()}
	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), pgschema.Render(`select from {schema}.schedule for update`, f.schema))
	require.NoError(t, err)
	for _, p := range []*progress{first, second} {
		again, err := s.look(t.Context(), s.entries[0], p)
		require.NoError(t, err)
		assert.Equal(t, busy, again)
	}
	require.NoError(t, tx.Rollback(t.Context()))
	due := time.Now()
	for range 2 {
		again, err := s.look(t.Context(), s.entries[0], second)
		require.NoError(t, err)
		assert.Equal(t, longest, again, "a year is far away")
		second.due = due
	}
	assert.Len(t, f.fired(), 1)
}

// A look at what others have fired costs one statement and the transaction's end, and writes nothing.
func TestScheduleLookIsCheap(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.look(Times{Expression: newYear})
	pool, trips := devtest.CountedPool(t)
	s, err := open(pool, f.schema, slog.DiscardHandler, report(Times{Expression: newYear}))
	require.NoError(t, err)
	state := func() (xmin, xmax string) {
		require.NoError(t, f.pool.QueryRow(t.Context(), pgschema.Render(`select xmin::text, xmax::text from {schema}.schedule`, f.schema)).Scan(&xmin, &xmax))
		return xmin, xmax
	}
	min1, max1 := state()
	assert.LessOrEqual(t, trips.Of(func() {
		_, err := s.look(t.Context(), s.entries[0], &progress{registered: true, due: time.Now().Add(-time.Hour)})
		require.NoError(t, err)
	}), 2)
	min2, max2 := state()
	assert.Equal(t, []string{min1, max1}, []string{min2, max2}, "the row is not even locked")
}

// A role with the grants fires, and does nothing else.
func TestScheduleGrants(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	name := f.schema + "_s"
	f.exec(`create role ` + name)
	t.Cleanup(func() { f.exec(`drop owned by ` + name + `; drop role ` + name) })
	grants, err := Grants(f.schema, GrantRoles{Scheduler: name})
	require.NoError(t, err)
	writer, err := outboxadmin.Grants(f.schema, outboxadmin.GrantRoles{Writer: name})
	require.NoError(t, err)
	f.exec(grants)
	f.exec(writer)
	pool := devtest.PoolOn(t, f.pool.Config().ConnString(), func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["role"] = name })
	s, err := open(pool, f.schema, slog.DiscardHandler, report(Times{Expression: newYear}))
	require.NoError(t, err)
	_, err = s.look(t.Context(), s.entries[0], &progress{})
	require.NoError(t, err)
	f.missedSince(longAgo)
	_, err = s.look(t.Context(), s.entries[0], &progress{})
	require.NoError(t, err)
	assert.Len(t, f.fired(), 1)
	require.ErrorContains(t, Forget(t.Context(), pool, f.schema, "billing", "report"), "permission denied")

	f.exec(`revoke all on {schema}.schedule from ` + name)
	operator, err := Grants(f.schema, GrantRoles{Operator: name})
	require.NoError(t, err)
	f.exec(operator)
	_, err = List(t.Context(), pool, f.schema)
	require.NoError(t, err)
	require.NoError(t, Forget(t.Context(), pool, f.schema, "billing", "report"))
	_, err = Grants("no-good", GrantRoles{})
	require.ErrorContains(t, err, `Schema is "no-good"`)
}
