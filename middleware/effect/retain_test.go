package effect_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/effect"
)

// age puts an effect into a day long past.
func (f *fixture) age(key string) {
	f.exec(`create table if not exists ` + f.schema + `.effect_20200101 partition of ` + f.schema + `.effect for values from ('2020-01-01Z') to ('2020-01-02Z')`)
	f.exec(`update `+f.schema+`.effect set created_at = '2020-01-01 12:00Z' where key = 'labour/' || $1`, key)
}

func (f *fixture) partitions() (n int) {
	require.NoError(f.t, f.pool.QueryRow(context.Background(), `select count(*) from pg_inherits where inhparent = $1::text::regclass`, f.schema+".effect").Scan(&n))
	return n
}

func (f *fixture) named(key string, err error) (calls int) {
	_ = effect.Once(f.ctx(), key, func(context.Context, string) error { calls++; return err })
	return calls
}

// Days are dropped whole, and what is in doubt in them is kept.
func TestRetention(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	assert.Equal(t, 9, f.partitions(), "from yesterday to a week ahead")
	for _, key := range []string{"done", "doubt", "refused", "called again"} {
		err := map[string]error{"doubt": errOops, "refused": effect.NotDone(errOops), "called again": effect.NotDone(errOops)}[key]
		assert.Equal(t, 1, f.named(key, err))
		f.age(key)
	}
	assert.Zero(t, f.named("done", nil), "found in every day")
	assert.Zero(t, f.named("doubt", nil))
	assert.Equal(t, 1, f.named("called again", errOops), "begins in the present day, which is not dropped")

	r, err := effect.Retain(t.Context(), f.pool, f.schema, 24*time.Hour)
	require.NoError(t, err)
	assert.Equal(t, effect.Retained{Days: []string{"effect_20200101"}, Moved: 1}, r)
	assert.Equal(t, 9, f.partitions())
	assert.Len(t, f.entries("doubt"), 2)
	assert.Zero(t, f.named("doubt", nil))
	assert.Equal(t, 1, f.named("done", nil), "what was forgotten is called again")
	r, err = effect.Retain(t.Context(), f.pool, f.schema, 24*time.Hour)
	require.NoError(t, err)
	assert.Equal(t, effect.Retained{}, r)

	_, err = effect.Retain(t.Context(), f.pool, f.schema, time.Hour)
	require.ErrorContains(t, err, "keep is 1h0m0s: want 24h0m0s or more")
}

// Effects go on while their rows move to another day.
func TestRetentionBesideCalls(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var both sync.WaitGroup
	for range 20 {
		require.Empty(t, f.entries("open"))
		require.Equal(t, 1, f.named("key", errOops))
		f.age("key")
		both.Go(func() {
			_, err := effect.Retain(t.Context(), f.pool, f.schema, 24*time.Hour)
			if err != nil { // the row was changed at the same time: the next run moves it
				assert.ErrorContains(t, err, "40001")
			}
		})
		both.Go(func() {
			assert.NoError(t, effect.Resolve(t.Context(), f.pool, f.schema, "labour/key", effect.Resolution{By: "ada"}))
		})
		both.Wait()
		assert.LessOrEqual(t, len(f.entries("all")), 1)
	}
}

// A server whose days nobody made makes them when they are needed.
func TestMissingDay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`do $$ declare r record; begin for r in select inhrelid::regclass as day from pg_inherits where inhparent = '` + f.schema + `.effect'::regclass
		loop execute 'drop table ' || r.day; end loop; end $$`)
	require.Zero(t, f.partitions())
	assert.Equal(t, 1, f.named("key", nil))
	assert.Equal(t, 9, f.partitions())
}

// Run needs the tables, keeps the days, and reports what is in doubt. A role that does not own the tables may run it.
func TestRunAndGrants(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	role := f.schema + "_r"
	f.exec(`create role ` + role)
	t.Cleanup(func() { f.exec(`drop owned by ` + role + `; drop role ` + role) })
	pool := devtest.PoolOn(t, f.pool.Config().ConnString(), func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role })
	reader := metric.NewManualReader()
	log := &logged{Handler: slog.DiscardHandler}
	ledger, err := effect.New(pool, effect.Config{
		Service: "labour", Retention: time.Since(time.Date(2020, time.January, 3, 0, 0, 0, 0, time.UTC)), // a day less than age's day needs
		Schema: f.schema, MeterProvider: metric.NewMeterProvider(metric.WithReader(reader)), Logger: slog.New(log), Settle: time.Millisecond,
	})
	require.NoError(t, err)
	defer ledger.Close()
	f.ledger = ledger
	_, err = once(f.ctx(), nil)
	require.ErrorContains(t, err, `run "millrace migrate grants --consumer ROLE"`)
	grants, err := effect.Grants(f.schema, effect.GrantRoles{Consumer: role})
	require.NoError(t, err)
	f.exec(grants)

	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	f.exec(`drop table ` + f.schema + `.effect_` + time.Now().UTC().AddDate(0, 0, 7).Format("20060102"))
	running.Go(func() { assert.NoError(t, ledger.Run(ctx)) })
	require.Eventually(t, func() bool { return f.partitions() == 9 }, time.Minute, 10*time.Millisecond)

	assert.Equal(t, 1, f.named("doubt", errOops))
	f.age("doubt")
	assert.Equal(t, 1, f.named("done", nil))
	assert.Zero(t, f.named("done", nil))
	assert.Equal(t, 1, f.named("refused", effect.NotDone(errOops)))
	f.age("refused")
	assert.Equal(t, 1, f.named("refused", nil), "the role may move it to the present day")
	require.NoError(t, effect.Once(f.ctx(), "doubt", func(context.Context, string) error { return errors.New("called") },
		effect.Reconcile(func(context.Context, effect.Intent) (effect.Outcome, error) { return effect.WasDone(nil), nil })))
	assert.Equal(t, 1, f.named("another doubt", errOops))
	assert.Equal(t, map[string]float64{
		"millrace.effect.calls": 5, "millrace.effect.replayed": 2, "millrace.effect.reconciled": 1, "millrace.effect.conflicts": 0,
		"millrace.effect.in_doubt": 1, "millrace.effect.in_doubt.oldest.age": 1,
	}, figures(t, reader))
	stop()
	running.Wait()

	require.ErrorContains(t, func() error { _, err := pool.Exec(t.Context(), `delete from `+f.schema+`.effect`); return err }(), "permission denied")
	_, err = effect.Retain(t.Context(), pool, f.schema, 24*time.Hour)
	require.ErrorContains(t, err, "retention run", "only the owner drops days")
	require.ErrorContains(t, effect.Resolve(t.Context(), pool, f.schema, "labour/another doubt", effect.Resolution{By: "ada"}), "permission denied")
	grants, err = effect.Grants(f.schema, effect.GrantRoles{Operator: role})
	require.NoError(t, err)
	f.exec(grants)
	require.NoError(t, effect.Resolve(t.Context(), pool, f.schema, "labour/another doubt", effect.Resolution{By: "ada"}))
	assert.Empty(t, log.errors(), "not even for a day that only the owner drops")

	nothing, err := effect.Grants(f.schema, effect.GrantRoles{})
	require.NoError(t, err)
	assert.Empty(t, nothing)
	_, err = effect.Grants("no-good", effect.GrantRoles{Consumer: role})
	require.ErrorContains(t, err, `Schema is "no-good"`)
}

func TestMissingTables(t *testing.T) {
	t.Parallel()
	f := &fixture{t: t, pool: devtest.Pool(t), schema: devtest.Schema(t)}
	f.ledger = f.open(f.pool, effect.Config{})
	require.ErrorContains(t, f.ledger.Run(t.Context()), `run "millrace migrate up" or effect.Migrate`)
	_, err := once(f.ctx(), nil)
	require.ErrorContains(t, err, `run effect.Migrate first, or "millrace migrate up"`)
	_, err = effect.List(t.Context(), f.pool, f.schema, effect.Listing{})
	require.ErrorContains(t, err, "millrace migrate up")
}

// logged keeps what is logged as an error.
type logged struct {
	slog.Handler
	mu  sync.Mutex
	all []string
}

func (l *logged) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }

func (l *logged) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, r.Message)
	r.Attrs(func(a slog.Attr) bool { l.all = append(l.all, a.String()); return true })
	return nil
}

func (l *logged) errors() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}

// figures collects the metrics and sums each over its attributes; of an age it tells only that there is one.
func figures(t *testing.T, reader metric.Reader) map[string]float64 {
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &all))
	got := map[string]float64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					got[m.Name] += float64(p.Value)
				}
			case metricdata.Gauge[int64]:
				got[m.Name] = float64(data.DataPoints[0].Value)
			case metricdata.Gauge[float64]:
				if age := data.DataPoints[0].Value; age > 0 && age < 60 {
					got[m.Name] = 1
				}
			}
		}
	}
	return got
}

// The service with the shorter retention dropped the effects of both, and a redelivered event of the other one had its effect again.
func TestLongestRetentionOfAllServicesCounts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const day = 24 * time.Hour
	housekeep := func(service string, keep time.Duration) {
		require.NoError(t, effect.Housekeep(t.Context(), f.open(f.pool, effect.Config{Service: service, Retention: keep})))
	}
	housekeep("labour", 8*day)
	require.Equal(t, 1, f.named("key", nil))
	date := time.Now().UTC().AddDate(0, 0, -5)
	f.exec(`create table ` + f.schema + `.effect_` + date.Format("20060102") + ` partition of ` + f.schema + `.effect
		for values from ('` + date.Format(time.DateOnly) + `Z') to ('` + date.AddDate(0, 0, 1).Format(time.DateOnly) + `Z')`)
	f.exec(`update `+f.schema+`.effect set created_at = $1`, date)

	housekeep("billing", 2*day)
	assert.Zero(t, f.named("key", nil))
	r, err := effect.Retain(t.Context(), f.pool, f.schema, 2*day)
	require.NoError(t, err)
	assert.Empty(t, r.Days, "as the command does")

	// A service that has gone for longer than it keeps its effects no longer counts.
	f.exec(`update ` + f.schema + `.effect_retention set renewed_at = now() - interval '9 days 1 minute' where service = 'labour'`)
	housekeep("billing", 2*day)
	assert.Equal(t, 1, f.named("key", nil))
}
