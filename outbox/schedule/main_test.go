package schedule

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/internal/role"
	"github.com/millrace-go/millrace/outbox"
)

func TestMain(m *testing.M) {
	if role.Name() == stalls {
		os.Exit(role.Play(playStalls))
	}
	devtest.Main(m)
}

const (
	everySecond = "* * * * * *"
	newYear     = "0 0 1 1 *"
	longAgo     = "2020-06-01 00:00:00+00"
	wait        = time.Minute
)

// fixture is a database with an outbox and schedules.
type fixture struct {
	t      *testing.T
	pool   *pgxpool.Pool
	schema string
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, pool: devtest.Pool(t), schema: devtest.Schema(t)}
	require.NoError(t, outbox.Migrate(t.Context(), f.pool, f.schema))
	require.NoError(t, Migrate(t.Context(), f.pool, f.schema))
	return f
}

// report is the event of a schedule.
func report(times Times) Event {
	return Event{Name: "report", Times: times, Topic: "report.due", Message: func(at time.Time) (*message.Message, error) {
		return message.NewMessage("", []byte(at.Format(time.RFC3339))), nil
	}}
}

func open(pool *pgxpool.Pool, schema string, log slog.Handler, events ...Event) (*Scheduler, error) {
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
	if err != nil {
		return nil, err
	}
	return New(pool, publisher, Config{Service: "billing", Schema: schema, Logger: slog.New(log)}, events...)
}

func (f *fixture) scheduler(events ...Event) *Scheduler {
	s, err := open(f.pool, f.schema, slog.NewTextHandler(f.t.Output(), nil), events...)
	require.NoError(f.t, err)
	return s
}

// look starts a process with the schedule, which looks once.
func (f *fixture) look(times Times) {
	f.t.Helper()
	s := f.scheduler(report(times))
	_, err := s.look(f.t.Context(), s.entries[0], &progress{})
	require.NoError(f.t, err)
}

func (f *fixture) exec(sql string) {
	f.t.Helper()
	_, err := f.pool.Exec(context.Background(), pgschema.Render(sql, f.schema))
	require.NoError(f.t, err)
}

// missedSince makes it so that no process has fired the schedule since then.
func (f *fixture) missedSince(at string) {
	f.exec(`update {schema}.schedule set due_after = '` + at + `'`)
}

// fired returns the events' payloads, which are their times, in order, and checks their IDs.
func (f *fixture) fired() []string {
	f.t.Helper()
	rows, err := f.pool.Query(context.Background(), pgschema.Render(`select event_id, convert_from(payload, 'utf8') from {schema}.outbox`, f.schema))
	require.NoError(f.t, err)
	var times []string
	var id, at string
	_, err = pgx.ForEachRow(rows, []any{&id, &at}, func() error {
		require.Equal(f.t, "billing/report@"+at, id)
		times = append(times, at)
		return nil
	})
	require.NoError(f.t, err)
	slices.Sort(times)
	return times
}

// eachSecondOnce checks that each second was fired once, from the first one to the last one.
func (f *fixture) eachSecondOnce() {
	f.t.Helper()
	times := f.fired()
	require.NotEmpty(f.t, times)
	first, err := time.Parse(time.RFC3339, times[0])
	require.NoError(f.t, err)
	for i, at := range times {
		require.Equal(f.t, first.Add(time.Duration(i)*time.Second).Format(time.RFC3339), at, "of %v", times)
	}
}

// years are the new years' days since longAgo.
func (f *fixture) years() (days []string) {
	var now time.Time
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), `select now()`).Scan(&now))
	for year := 2021; year <= now.UTC().Year(); year++ {
		days = append(days, time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC).Format(time.RFC3339))
	}
	return days
}
