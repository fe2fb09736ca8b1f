package brokermigration

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/transport"
)

// known is a broker that tells what it was told to tell of each consumer.
type known struct {
	transport.Transport
	name  string
	tells transport.Inspection
	asked func() // nil: nothing
}

func (k *known) Name() string { return k.name }

func (k *known) Inspect(context.Context, string, string) (transport.Inspection, error) {
	if k.asked != nil {
		k.asked()
	}
	return k.tells, nil
}

// fixture is a database whose events are in migration from the broker old, which has been read, to the broker new.
type fixture struct {
	*testing.T
	query    Query
	old, new *known
}

func newFixture(t *testing.T, phase Phase) *fixture {
	t.Parallel()
	f := &fixture{T: t, old: &known{name: "old", tells: transport.Inspection{Topic: true, Consumer: true}}, new: &known{name: "new"}}
	f.query = Query{Pool: devtest.Pool(t), Schema: devtest.Schema(t), From: f.old, To: f.new}
	require.NoError(t, outbox.Migrate(t.Context(), f.query.Pool, f.query.Schema))
	f.exec(`insert into {schema}.outbox_broker (epoch, from_name, to_name, phase) values (1, 'old', 'new', '` + string(phase) + `')`)
	return f
}

func (f *fixture) exec(sql string) {
	f.Helper()
	_, err := f.query.Pool.Exec(f.Context(), pgschema.Render(sql, f.query.Schema))
	require.NoError(f, err)
}

// process adds one that reads a topic, and whose registration ends after an interval.
func (f *fixture) process(name, group, ends string) {
	f.Helper()
	f.exec(`insert into {schema}.outbox_broker_process (process_id, name, service, from_name, to_name, expires_at, epoch, consumers)
		values ('` + uuid.NewString() + `', '` + name + `', 'shop', 'old', 'new', now() + interval '` + ends + `', 1, '[{"topic": "t", "group": "` + group + `"}]')`)
}

// An event that is published to Pub/Sub before the subscription exists reaches nobody.
func TestNothingIsPublishedWhereAConsumerIsNotKnown(t *testing.T) {
	for name, c := range map[string]struct {
		ends     string
		old, new transport.Inspection
		blocked  bool
	}{
		"no subscription":                 {"1 hour", transport.Inspection{Topic: true, Consumer: true}, transport.Inspection{Topic: true, Lag: -1}, true},
		"no topic":                        {"1 hour", transport.Inspection{Topic: true, Consumer: true}, transport.Inspection{Lag: -1}, true},
		"no subscription for one of late": {"-1 hour", transport.Inspection{Topic: true, Consumer: true}, transport.Inspection{Topic: true, Lag: -1}, true},
		"none that is needed":             {"-1 hour", transport.Inspection{Topic: true}, transport.Inspection{Topic: true, Lag: -1}, false},
		"a subscription":                  {"1 hour", transport.Inspection{Topic: true, Consumer: true}, transport.Inspection{Topic: true, Consumer: true, Lag: -1}, false},
		"a group that will begin at once": {"1 hour", transport.Inspection{Topic: true, Consumer: true}, transport.Inspection{Topic: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Drain)
			f.process("one", "g", c.ends)
			f.old.tells, f.new.tells = c.old, c.new
			s, err := Step(t.Context(), f.query, false, "test")
			if !c.blocked {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrBlocked)
			require.Len(t, s.Next.Blocked, 1)
			assert.Contains(t, s.Next.Blocked[0], "consumer g of topic t is not known to new, so that events published there would not reach it: start")
			assert.Empty(t, s.Back.Blocked, "to publish to the old broker again is safe")
		})
	}
}

// A consumer that has been down for days still has something to read.
func TestReadersAreNotForgotten(t *testing.T) {
	f := newFixture(t, Drain)
	f.process("down for days", "g", "-3 days")
	f.process("before it", "g", "-4 days")
	f.process("down, and reads what another one reads", "h", "-3 days")
	f.process("that other one", "h", "1 hour")
	f.exec(store.Query("broker_sweep", f.query.Schema))
	all, _, err := whoLives(t.Context(), f.query.Pool, f.query.Schema)
	require.NoError(t, err)
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
	}
	assert.ElementsMatch(t, []string{"down for days", "that other one"}, names)
	f.old.tells.Lag = -1
	_, err = Step(t.Context(), f.query, false, "test")
	require.ErrorIs(t, err, ErrBlocked)
	f.new.tells = f.old.tells
	s, err := Inspect(t.Context(), f.query)
	require.NoError(t, err)
	assert.Contains(t, s.Next.Blocked, "no process of the migration reads consumer g of topic t from old: start one, or delete the subscription")
}

// On a broker that knows the lag, deleting the consumer would leave more to read.
func TestConsumerThatIsGoneCanSkip(t *testing.T) {
	for name, c := range map[string]struct{ ends, want string }{
		"gone":  {"-3 days", `no process of the migration reads consumer g of topic t from old, which has 7 messages for it: start one, or, if the consumer is gone for good, skip them: "millrace consumer reset --broker old --topic t --consumer g --to latest --dry-run"`},
		"lives": {"1 hour", "consumer g of topic t has not handled 7 messages of old"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Drain)
			f.process("one", "g", c.ends)
			f.old.tells.Lag, f.new.tells = 7, f.old.tells
			s, err := Inspect(t.Context(), f.query)
			require.NoError(t, err)
			assert.Equal(t, []string{c.want}, s.Next.Blocked)
		})
	}
}

// One process may run several services, of one database or of several. A name that takes part for one of them said so for all.
func TestServiceThatTakesNoPartIsSeen(t *testing.T) {
	other := func(f *fixture) string { // another database's claims and outbox
		schema := devtest.Schema(t)
		require.NoError(t, outbox.Migrate(t.Context(), f.query.Pool, schema))
		require.NoError(t, claim.Migrate(t.Context(), f.query.Pool, schema))
		f.query.Others = []Database{{f.query.Pool, schema}}
		return schema
	}
	claims := func(f *fixture, schema, service string) {
		_, err := f.query.Pool.Exec(t.Context(), pgschema.Render(`insert into {schema}.claim_run (service, name) values ($1, 'one')`, schema), service)
		require.NoError(t, err)
	}
	for name, c := range map[string]struct {
		set       func(*fixture)
		strangers []string
	}{
		"the service itself":  {func(f *fixture) { claims(f, f.query.Schema, "shop") }, nil},
		"another service":     {func(f *fixture) { claims(f, f.query.Schema, "billing") }, []string{"one of service billing"}},
		"in another database": {func(f *fixture) { claims(f, other(f), "shop") }, []string{"one of service shop"}},
		"of no service by name": {func(f *fixture) {
			claims(f, f.query.Schema, "billing")
			f.exec(`update {schema}.outbox_broker_process set service = ''`)
		}, nil},
		"a relay": {func(f *fixture) {
			f.exec(`insert into {schema}.outbox_relay (relay_id, expires_at, name) values (gen_random_uuid(), now() + interval '1 hour', 'one'), (gen_random_uuid(), now() + interval '1 hour', 'two')`)
		}, []string{"two"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Consume)
			require.NoError(t, claim.Migrate(t.Context(), f.query.Pool, f.query.Schema))
			f.process("one", "g", "1 hour")
			c.set(f)
			s, err := Inspect(t.Context(), f.query)
			require.NoError(t, err)
			assert.Equal(t, c.strangers, s.Strangers)
			assert.Len(t, s.Next.Blocked, len(c.strangers))
		})
	}
}

// Back from cut, the record refuses processes that know only the new broker: they could not start again.
func TestNoStepBackFromCutWhileProcessesKnowOnlyTheNewBroker(t *testing.T) {
	f := newFixture(t, Cut)
	f.exec(`insert into {schema}.outbox_relay (relay_id, expires_at, name) values (gen_random_uuid(), now() + interval '1 hour', 'two')`)
	s, err := Step(t.Context(), f.query, true, "test")
	require.ErrorIs(t, err, ErrBlocked)
	assert.Equal(t, []string{"process two takes no part in the migration: give it broker: old and migration: {to: new}, or stop it"}, s.Back.Blocked)
}

// A step whose answer was lost was reported as one that failed. Whoever tried again made two steps.
func TestStepWhoseAnswerIsLostCountsAsMade(t *testing.T) {
	f := newFixture(t, Cut)
	f.process("one", "g", "1 hour")
	plain := f.query.Pool
	pool, cut := devtest.CutPool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec }) // the batch in one round trip
	f.query.Pool, f.new.asked = pool, cut.Next
	s, err := Step(t.Context(), f.query, true, "test")
	require.NoError(t, err)
	assert.Equal(t, Cut, s.Phase)
	r, err := ReadRecord(t.Context(), plain, f.query.Schema)
	require.NoError(t, err)
	assert.EqualValues(t, 2, r.Epoch)
	assert.Equal(t, Publish, r.Phase)
}

// After an error the database is asked whether the step was made, and does not answer either.
func TestStepSaysThatItMayHaveBeenMade(t *testing.T) {
	f := newFixture(t, Cut)
	f.process("one", "g", "1 hour")
	pool, err := pgxpool.NewWithConfig(t.Context(), f.query.Pool.Config())
	require.NoError(t, err)
	f.query.Pool, f.new.asked = pool, pool.Close
	_, err = Step(t.Context(), f.query, true, "test")
	require.ErrorContains(t, err, `it may have been made: look at "millrace migration status" before you try again, because that could make a second step: `+
		`phase publish means that it was made, phase cut that it was not, or that its transaction still runs: `)
}

// Ctrl-C before the step: the record, which is read nevertheless, says that it was not made.
func TestStepThatWasNotMadeIsAnError(t *testing.T) {
	f := newFixture(t, Cut)
	f.process("one", "g", "1 hour")
	ctx, interrupt := context.WithCancel(t.Context())
	f.new.asked = interrupt
	_, err := Step(ctx, f.query, true, "test")
	require.EqualError(t, err, "step of the broker migration: context canceled")
}

// A process whose role reads by an older snapshot would publish by the phase before the step for which it waited.
func TestBeatReadsTheStepThatItWaitedFor(t *testing.T) {
	f := newFixture(t, Drain)
	own := f.query.Pool.Config()
	own.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
	pool, err := pgxpool.NewWithConfig(t.Context(), own)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	p := &process{pool: pool, schema: f.query.Schema, id: uuid.New(), log: slog.New(slog.DiscardHandler), from: &side{Transport: f.old}, to: &side{Transport: f.new}}
	t.Cleanup(p.disconnect)
	require.NoError(t, p.beat(t.Context()))

	tx, err := f.query.Pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), store.Query("broker_lock", f.query.Schema))
	require.NoError(t, err)
	beat := make(chan error, 1)
	go func() { beat <- p.beat(t.Context()) }()
	const waits = `select exists (select from pg_locks where not granted and locktype = 'advisory' and pid = $1)`
	require.Eventually(t, func() (waiting bool) {
		require.NoError(t, f.query.Pool.QueryRow(t.Context(), waits, p.conn.PgConn().PID()).Scan(&waiting))
		return waiting
	}, time.Minute, 10*time.Millisecond)
	_, err = tx.Exec(t.Context(), store.Query("broker_step", f.query.Schema), 2, "old", "new", Publish, "test")
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-beat)
	assert.EqualValues(t, 2, p.gate.record.Epoch)
}

// A batch that began before a restore set the record back is not counted: steps may have been made that the database does not know.
func TestRecordThatIsSetBackEndsTheTerm(t *testing.T) {
	t.Parallel()
	var g gate
	now := time.Now()
	beat := func(epoch int64) {
		g.seen(Record{Epoch: epoch, From: "old", To: "new", Phase: Publish}, nil, now.Add(ttl), now)
	}
	beat(2)
	_, counted, err := g.begin(now)
	require.NoError(t, err)
	_, lost, err := g.begin(now)
	require.NoError(t, err)
	beat(3)
	assert.True(t, g.end(counted, now))
	beat(2)
	assert.False(t, g.end(lost, now))
}
