package effect

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/middleware/claim"
)

// Every process must compute the same, whatever its version, and the provider has seen it: these values must never change.
func TestStoredFormat(t *testing.T) {
	assert.Equal(t, int64(7467720757893044134), lockKey("millrace", "sms:1"))
	assert.Equal(t, "7c98b574-306f-859b-8573-e47f85b9fad3", idempotencyKey("millrace", "sms:1"))
	assert.NotEqual(t, idempotencyKey("millrace", "sms:1"), idempotencyKey("other", "sms:1"))
	u, err := uuid.Parse(idempotencyKey("millrace", "sms:2"))
	require.NoError(t, err)
	assert.Equal(t, uuid.Version(8), u.Version())
	assert.Equal(t, uuid.RFC4122, u.Variant())
}

func TestEveryStatementPrepares(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, Migrate(t.Context(), pool, schema))
	require.NoError(t, claim.Migrate(t.Context(), pool, schema))
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	require.NoError(t, pgschema.Prepare(t.Context(), conn.Conn(), files, schema))
}

// The gauge of doubts once read every effect that was pending, at each scrape.
func TestGaugeOfDoubtsReadsThemAlone(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, Migrate(t.Context(), pool, schema))
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(context.WithoutCancel(t.Context()))) }()
	_, err = tx.Exec(t.Context(), `set local enable_seqscan = off; set local enable_bitmapscan = off`)
	require.NoError(t, err)
	rows, err := tx.Query(t.Context(), `explain (costs off) `+pgschema.Query(files, "observe", schema))
	require.NoError(t, err)
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	assert.Regexp(t, `Index Cond: .*until <= statement_timestamp`, strings.Join(plan, "\n"))
}

// An operator asks for an event's effects, however many there are.
func TestEffectsOfAnEventAreReadAlone(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, Migrate(t.Context(), pool, schema))
	_, err := pool.Exec(t.Context(), strings.ReplaceAll(`insert into {s}.effect (created_at, key, state, token, calls, first_called_at, called_at, until, event_id)
		select now(), 'key' || i, 'done', gen_random_uuid(), 1, now(), now(), now(), 'event' || i % 5000 from generate_series(1, 10000) i; analyze {s}.effect`, "{s}", schema))
	require.NoError(t, err)
	plan := func() (lines string) {
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), pgschema.Query(files, "plan", schema)); err != nil {
				return err
			}
			rows, err := tx.Query(t.Context(), `explain (costs off) `+pgschema.Query(files, "list", schema), "all", 100, "", nil, "event7")
			if err != nil {
				return err
			}
			plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
			lines = strings.Join(plan, "\n")
			return err
		}))
		return lines
	}
	byEvent := regexp.MustCompile(`Index Cond: \(event_id = 'event7'`)
	assert.Regexp(t, byEvent, plan(), "in the only day that has effects")
	found, err := List(t.Context(), pool, schema, Listing{State: "all", EventID: "event7"})
	require.NoError(t, err)
	assert.Len(t, found, 2)
	_, err = pool.Exec(t.Context(), `drop index `+schema+`.effect_event`)
	require.NoError(t, err)
	assert.NotRegexp(t, byEvent, plan(), "the control: without the index")
}

var (
	start         = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	first, second = uuid.New(), uuid.New()
)

func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// begun is a record whose first call began at the start, with 30 s.
func begun(change func(r *record)) *record {
	_, r := begin(nil, start, first, options{timeout: 30 * time.Second}, 0)
	if change != nil {
		change(r)
	}
	return r
}

func nobody(context.Context, Intent) (Outcome, error) { return Unknown(), nil }

func TestBegin(t *testing.T) {
	t.Parallel()
	var (
		plain      = options{timeout: 30 * time.Second}
		idempotent = options{timeout: 30 * time.Second, idempotent: true}
		anHour     = options{timeout: 30 * time.Second, idempotent: true, honoured: time.Hour}
		asking     = options{timeout: 30 * time.Second, reconcile: nobody}
		ended      = begun(func(r *record) { r.State, r.Until = doubt, at(3) })
	)
	for _, test := range []struct {
		name string
		r    *record
		now  time.Time
		o    options
		want verdict
	}{
		{"unknown", nil, start, plain, call},
		{"done", begun(func(r *record) { r.State = done }), at(99), idempotent, replay},
		{"not done", begun(func(r *record) { r.State = notDone }), at(1), plain, call},
		{"running", begun(nil), at(29), plain, wait},
		{"running, even where the provider makes one of two", begun(nil), at(29), idempotent, wait},
		{"running, its intent recorded by us: the answer was lost", begun(func(r *record) { r.Token = second }), at(1), plain, call},
		{"its time is up", begun(nil), at(30), plain, stuck},
		{"its time is up, the provider makes one of two", begun(nil), at(30), idempotent, call},
		{"its time is up, the provider may still work on it", begun(nil), at(34), asking, wait},
		{"its time is up, the provider is asked", begun(nil), at(35), asking, ask},
		{"ended", ended, at(4), plain, stuck},
		{"ended, the provider makes one of two", ended, at(4), idempotent, call},
		{"ended, the provider may still work on it", ended, at(7), asking, wait},
		{"ended, the provider is asked", ended, at(8), asking, ask},
		{"the provider remembers the key", ended, at(3569), anHour, call},
		{"the provider may forget the key during the call", ended, at(3570), anHour, stuck},
	} {
		got, next := begin(test.r, test.now, second, test.o, 5*time.Second)
		assert.Equal(t, test.want, got, test.name)
		if got != call {
			assert.Nil(t, next, test.name)
			continue
		}
		assert.Equal(t, record{
			CreatedAt: test.now, State: running, Token: second, Calls: next.Calls, FirstCalledAt: next.FirstCalledAt,
			CalledAt: test.now, Until: test.now.Add(30 * time.Second),
		}, *next, test.name)
		if test.r != nil {
			assert.Equal(t, start, next.FirstCalledAt, test.name)
		}
	}
}

func TestFinish(t *testing.T) {
	t.Parallel()
	now, answer := at(40), []byte(`1`)
	overtaken := func(change func(r *record)) *record { // a second call has begun
		_, r := begin(begun(func(r *record) { r.State = notDone }), at(35), second, options{timeout: time.Minute}, 0)
		if change != nil {
			change(r)
		}
		return r
	}
	for _, test := range []struct {
		name       string
		r          *record
		state      string
		idempotent bool
		doubted    bool   // an earlier call was in doubt
		want       string // the state that follows; "": nothing is written
		conflicts  int
	}{
		{"done", begun(nil), done, false, false, done, 0},
		{"done, too late, and nobody has looked", begun(func(r *record) { r.State = doubt }), done, false, false, done, 0},
		{"done, though settled as not done", begun(func(r *record) { r.State = notDone }), done, false, false, done, 0},
		{"done, as was settled", begun(func(r *record) { r.State = done }), done, false, false, done, 0},
		{"done, and another one calls", overtaken(nil), done, false, false, done, 1},
		{"done, and another one calls with the same key", overtaken(nil), done, true, false, done, 0},
		{"done, and another one too", overtaken(func(r *record) { r.State = done }), done, false, false, done, 1},
		{"done, and another one was refused", overtaken(func(r *record) { r.State = notDone }), done, false, false, done, 1},
		{"not done", begun(nil), notDone, false, false, notDone, 0},
		{"not done, and of an earlier call nobody knows", begun(nil), notDone, true, true, doubt, 0},
		{"done, and of an earlier call nobody knew", begun(nil), done, true, true, done, 0},
		{"not done, settled as done", begun(func(r *record) { r.State = done }), notDone, false, false, "", 0},
		{"not done, and another one calls", overtaken(nil), notDone, false, false, "", 0},
		{"unknown", begun(nil), doubt, false, false, doubt, 0},
		{"unknown, settled as not done", begun(func(r *record) { r.State = notDone }), doubt, false, false, "", 0},
		{"unknown, and another one calls", overtaken(nil), doubt, false, false, "", 0},
	} {
		next, conflict := test.r.finish(first, test.state, now, answer, "why", options{idempotent: test.idempotent, doubted: test.doubted})
		assert.Equal(t, test.conflicts == 1, conflict, test.name)
		if test.want == "" {
			assert.Nil(t, next, test.name)
			continue
		}
		if !assert.NotNil(t, next, test.name) {
			continue
		}
		assert.Equal(t, test.want, next.State, test.name)
		assert.Equal(t, test.conflicts, next.Conflicts, test.name)
		switch test.want {
		case done:
			assert.Equal(t, answer, next.Response, test.name)
		case doubt:
			assert.Equal(t, now, next.Until, test.name)
			assert.Equal(t, "why", next.Reason, test.name)
		}
	}
}

func TestResolveDecides(t *testing.T) {
	t.Parallel()
	inDoubt := begun(func(r *record) { r.State, r.Until, r.Reason = doubt, at(3), "a timeout" })
	for _, test := range []struct {
		name string
		r    *record
		d    Resolution
		want string // the state that follows, or the error
	}{
		{"unknown", nil, Resolution{Done: true}, "no such effect"},
		{"running", begun(nil), Resolution{Done: true}, "it may be running until 2026-01-02T03:04:35Z"},
		{"done", inDoubt, Resolution{Done: true, Response: []byte(`1`)}, done},
		{"not done", inDoubt, Resolution{}, notDone},
		{"decided", begun(func(r *record) { r.State, r.SettledBy = notDone, "call" }), Resolution{Done: true}, "it is not_done, by call"},
		{"done, and not to be called again", begun(func(r *record) { r.State = done }), Resolution{}, "nothing to decide"},
		{"the response comes later", begun(func(r *record) { r.State = done }), Resolution{Done: true, Response: []byte(`1`)}, done},
		{"the response stays", begun(func(r *record) { r.State, r.Response = done, []byte(`2`) }), Resolution{Done: true, Response: []byte(`1`)}, "nothing to decide"},
		{"a conflict is seen", begun(func(r *record) { r.State, r.Conflicts = done, 1 }), Resolution{Done: true}, done},
	} {
		next, err := test.r.resolve(test.d, at(10))
		if next == nil {
			assert.ErrorContains(t, err, test.want, test.name)
			continue
		}
		assert.Equal(t, test.want, next.State, test.name)
		assert.Zero(t, next.Conflicts, test.name)
		assert.Equal(t, string(test.d.Response), string(next.Response), test.name)
	}
}
