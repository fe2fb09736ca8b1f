package claim_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
)

func (f *fixture) claim(cfg claim.Config) *claim.Claim {
	if cfg.Consumer == nil {
		cfg.Consumer = func(string) string { return "notify" }
	}
	c, err := claim.New(f.store, f.inMode(cfg))
	require.NoError(f.t, err)
	claim.Alone(c)
	return c
}

// running runs the Claim's Run, once it is registered, until what it returns is called.
func (f *fixture) running(c *claim.Claim) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var runs sync.WaitGroup
	runs.Go(func() { assert.NoError(f.t, c.Run(ctx)) })
	require.Eventually(f.t, func() bool { registered, _ := claim.Standing(c); return registered }, time.Minute, time.Millisecond)
	stop = sync.OnceFunc(func() { cancel(); runs.Wait() })
	f.t.Cleanup(stop)
	return stop
}

// killed leaves the row of a process that was killed, and returns its number.
func (f *fixture) killed() (run int64) {
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), `insert into `+f.schema+`.claim_run (service, name, beat_at)
		values ('labour', 'killed', now() - interval '1 minute') returning id`).Scan(&run))
	return run
}

// noted leaves the note of an event that was in hand when the process was killed.
func (f *fixture) noted(run int64, eventID string, starts int) {
	record, consumer := claim.Record(f.t.Context(), f.store, claim.Key{Consumer: "labour/notify", EventID: eventID})
	_, err := f.pool.Exec(f.t.Context(), `insert into `+f.schema+`.claim_start (consumer, record, run, starts) values ($1, $2, $3, $4)`,
		consumer, record, run, starts)
	require.NoError(f.t, err)
}

func suspicious(c *claim.Claim) bool {
	_, yes := claim.Standing(c)
	return yes
}

func TestCleanRestartsAreNotSuspicious(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for range 3 {
		c := f.claim(claim.Config{})
		stop := f.running(c)
		assert.False(t, suspicious(c))
		assert.Equal(t, 1, f.count("claim_run"))
		stop()
		assert.Zero(t, f.count("claim_run"))
	}
}

// Who comes beside others does not know at first whether they live.
func TestProcessesBesideOneAnother(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, second := f.claim(claim.Config{}), f.claim(claim.Config{})
	for _, c := range []*claim.Claim{first, second} {
		claim.Hasten(c, 50*time.Millisecond, time.Minute)
	}
	f.running(first)
	f.running(second)
	assert.True(t, suspicious(second) || !suspicious(first))
	require.Eventually(t, func() bool { return !suspicious(second) && !suspicious(first) }, time.Minute, 10*time.Millisecond)
	f.killed()
	require.Eventually(t, func() bool { return suspicious(second) && suspicious(first) }, time.Minute, 10*time.Millisecond)
}

func TestRunWaitsForClaimsInHand(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.claim(claim.Config{})
	stop, ended := f.running(c), make(chan struct{})
	begun, finish, handled := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		msg, _ := deliver(t, "1")
		_, err := c.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			close(begun)
			<-finish
			return f.handler(msg)
		})(msg)
		handled <- err
	}()
	<-begun
	go func() {
		stop()
		close(ended)
	}()
	require.Never(t, func() bool { return f.count("claim_run") == 0 }, 200*time.Millisecond, 10*time.Millisecond)
	close(finish)
	require.NoError(t, <-handled)
	<-ended
	assert.Zero(t, f.count("claim_run"))
}

// A handler that does not end in time may be killed with its process: that was no clean stop.
func TestRunDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.claim(claim.Config{HandlerTimeout: time.Second})
	claim.Hasten(c, time.Second, time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	require.Eventually(t, func() bool { registered, _ := claim.Standing(c); return registered }, time.Minute, time.Millisecond)
	begun, finish, handled := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(handled)
		msg, _ := deliver(t, "1")
		_, _ = c.Middleware(func(*message.Message) ([]*message.Message, error) {
			close(begun)
			<-finish
			return nil, errOops
		})(msg)
	}()
	<-begun
	cancel()
	require.ErrorContains(t, <-ended, "1 handlers have not ended")
	assert.Equal(t, 1, f.count("claim_run"))
	close(finish)
	<-handled
	next := f.claim(claim.Config{})
	f.running(next)
	assert.True(t, suspicious(next))
}

type otherStore struct{ claim.Store }

type wrapped struct{ claim.Store }

func (w wrapped) Unwrap() claim.Store { return w.Store }

func TestWhatRunNeeds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, err := claim.New(otherStore{f.store}, claim.Config{Service: "labour"})
	require.NoError(t, err)
	require.ErrorContains(t, c.Run(t.Context()), "the store is a claim_test.otherStore, with no PostgreSQL behind it")
	c, err = claim.New(wrapped{f.store}, claim.Config{Service: "labour"})
	require.NoError(t, err)
	stop := f.running(c)
	require.ErrorContains(t, c.Run(t.Context()), "it runs already")
	stop()

	c, err = claim.New(claim.NewPostgresStore(f.pool, claim.Schema(devtest.Schema(t))), claim.Config{Service: "labour"})
	require.NoError(t, err)
	require.ErrorContains(t, c.Run(t.Context()), "migrate up")
	_, err = claim.New(f.store, claim.Config{Service: "labour", MaxStarts: -2})
	require.ErrorContains(t, err, "Config.MaxStarts is -2: want 1 or more")
}

// A process without reason to be suspicious pays nothing; else a note is one round trip, and is struck out with the commit.
func TestRoundTripsBesideRun(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pool, trips := devtest.CountedPool(t)
	f.store = claim.NewPostgresStore(pool, claim.Schema(f.schema))
	n := 0
	one := func(c *claim.Claim) int {
		return trips.Of(func() {
			n++
			msg, _ := deliver(t, string(rune('a'+n)))
			_, err := c.Middleware(f.handler)(msg)
			require.NoError(t, err)
		})
	}
	c := f.claim(claim.Config{})
	without := one(c)

	// What is old is forgotten when Run begins: then nothing more of its own is sent until the next beat.
	beside := func(c *claim.Claim) int {
		_, err := f.pool.Exec(t.Context(), `insert into `+f.schema+`.claim_start values (1, gen_random_uuid(), 1, 0, now() - interval '2 days')`)
		require.NoError(t, err)
		claim.Hasten(c, time.Hour, time.Minute)
		defer f.running(c)()
		require.Eventually(t, func() bool { return f.count("claim_start") == 0 }, time.Minute, time.Millisecond)
		awaitIdle(t, pool)
		return one(c)
	}
	c = f.claim(claim.Config{})
	assert.Equal(t, without, beside(c))
	assert.False(t, suspicious(c))
	_, err := f.pool.Exec(t.Context(), `insert into `+f.schema+`.claim_run (service, name, beat_at) values
		('labour', 'killed', now() - interval '30 minutes'), ('labour', 'killed long ago', now() - interval '2 days')`)
	require.NoError(t, err)
	assert.Equal(t, without+1, beside(f.claim(claim.Config{})))
	assert.Zero(t, f.count("claim_start"))
	assert.Equal(t, 1, f.count("claim_run"), "processes of long ago are forgotten too")
}

func awaitIdle(t *testing.T, pool *pgxpool.Pool) {
	require.Eventually(t, func() bool { return pool.Stat().AcquiredConns() == 0 }, time.Minute, time.Millisecond)
}
