package effect_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/memory"
)

// charges calls a provider that answers later.
type charges struct {
	*fixture
	calls atomic.Int32
}

func (c *charges) charge(within time.Duration, opts ...effect.Option) (string, error) {
	return effect.Value(c.ctx(), "charge:1", func(context.Context, string) (string, error) {
		c.calls.Add(1)
		return "", effect.Pending(within)
	}, opts...)
}

// told is the provider's later call, in a transaction that writes, too.
func (c *charges) told(outcome effect.Outcome) error {
	return pgx.BeginFunc(c.t.Context(), c.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(c.t.Context(), `insert into `+c.schema+`.told values ('charge:1')`)
		return errors.Join(err, c.ledger.Complete(c.t.Context(), tx, "charge:1", outcome))
	})
}

func newCharges(t *testing.T) *charges {
	c := &charges{fixture: newFixture(t)}
	c.exec(`create table ` + c.schema + `.told (key text)`)
	return c
}

func (c *charges) states() (all []string) {
	for _, state := range []string{"open", "pending", "done", "not_done"} {
		if len(c.entries(state)) > 0 {
			all = append(all, state)
		}
	}
	return all
}

// The provider takes the effect and tells its outcome later. Until then nobody calls again, no person is asked, and no attempt counts.
// Then each delivery gets the outcome. The same outcome again is no error; another one is, and changes nothing.
func TestCompletedByALaterCall(t *testing.T) {
	t.Parallel()
	c := newCharges(t)
	for range 3 {
		_, err := c.charge(time.Hour, effect.Idempotent())
		require.ErrorIs(t, err, effect.ErrPending)
		require.NotErrorIs(t, err, effect.ErrInDoubt)
		after, ok := retryAfter(err)
		assert.True(t, ok, "no attempt is counted")
		assert.Equal(t, quick.RetryAfter, after)
		assert.Equal(t, []string{"pending"}, c.states())
	}
	require.NoError(t, c.told(effect.WasDone("ch_1")))
	require.NoError(t, c.told(effect.WasDone("ch_1")), "the provider repeats itself")
	require.ErrorIs(t, c.told(effect.WasDone("ch_2")), effect.ErrContradicted)
	require.ErrorIs(t, c.told(effect.WasNotDone()), effect.ErrContradicted)
	id, err := c.charge(time.Hour)
	require.NoError(t, err)
	assert.Equal(t, "ch_1", id)
	assert.EqualValues(t, 1, c.calls.Load())
	assert.Equal(t, []string{"done"}, c.states())
	var told int
	require.NoError(t, c.pool.QueryRow(t.Context(), `select count(*) from `+c.schema+`.told`).Scan(&told))
	assert.Equal(t, 2, told, "what contradicted was rolled back")
}

// What was not done is called again, and may then be done.
func TestCompletedAsNotDone(t *testing.T) {
	t.Parallel()
	c := newCharges(t)
	for n := range 2 {
		_, err := c.charge(time.Hour)
		require.ErrorIs(t, err, effect.ErrPending)
		assert.EqualValues(t, n+1, c.calls.Load())
		require.NoError(t, c.told(effect.WasNotDone()))
		require.NoError(t, c.told(effect.WasNotDone()))
	}
	_, err := c.charge(time.Hour)
	require.ErrorIs(t, err, effect.ErrPending, "the provider may have told of the first call again")
	require.NoError(t, c.told(effect.WasDone("ch_1")))
	id, err := c.charge(time.Hour)
	require.NoError(t, err)
	assert.Equal(t, "ch_1", id)
	assert.EqualValues(t, 2, c.calls.Load())
}

// The later call comes before the first one has returned.
func TestCompletedBeforeTheCallReturns(t *testing.T) {
	t.Parallel()
	c := newCharges(t)
	id, err := effect.Value(c.ctx(), "charge:1", func(context.Context, string) (string, error) {
		require.ErrorIs(t, c.told(effect.WasNotDone()), effect.ErrRunning, "nobody may call again while this one runs")
		require.NoError(t, c.told(effect.WasDone("ch_1")))
		return "", fmt.Errorf("charge: %w", effect.Pending(time.Hour))
	})
	require.NoError(t, err)
	assert.Equal(t, "ch_1", id)
}

// The provider tells nothing in time: then the effect is in doubt, and the outcome still settles it when it comes.
func TestCompletedTooLate(t *testing.T) {
	t.Parallel()
	c := newCharges(t)
	_, err := c.charge(-time.Second)
	require.ErrorIs(t, err, effect.ErrPending)
	assert.Equal(t, []string{"open"}, c.states())
	_, err = c.charge(time.Hour)
	require.ErrorIs(t, err, effect.ErrInDoubt)
	require.NoError(t, c.told(effect.WasDone("ch_1")))
	id, err := c.charge(time.Hour)
	require.NoError(t, err)
	assert.Equal(t, "ch_1", id)
	assert.EqualValues(t, 1, c.calls.Load())
	assert.Equal(t, []string{"done"}, c.states())
}

// A person may decide before the time is up.
func TestPendingIsResolved(t *testing.T) {
	t.Parallel()
	c := newCharges(t)
	_, err := c.charge(time.Hour)
	require.ErrorIs(t, err, effect.ErrPending)
	require.NoError(t, effect.Resolve(t.Context(), c.pool, c.schema, "labour/charge:1", effect.Resolution{Done: true, Response: []byte(`"ch_1"`), By: "ada"}))
	require.NoError(t, c.told(effect.WasDone("ch_1")))
	require.ErrorIs(t, c.told(effect.WasDone("ch_2")), effect.ErrContradicted)
}

// What cannot be completed says so, and what was rolled back was not completed.
func TestCompleteRefuses(t *testing.T) {
	t.Parallel()
	c := newCharges(t)
	require.ErrorIs(t, c.told(effect.WasDone("ch_1")), effect.ErrNoEffect)
	require.ErrorContains(t, c.ledger.Complete(t.Context(), nil, "", effect.Unknown()), "the key is empty")
	require.ErrorContains(t, c.ledger.Complete(t.Context(), nil, "charge:1", effect.Unknown()), "want WasDone or WasNotDone")
	_, err := c.charge(time.Hour)
	require.ErrorIs(t, err, effect.ErrPending)
	tx, err := c.pool.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, c.ledger.Complete(t.Context(), tx, "charge:1", effect.WasDone("ch_1")))
	require.NoError(t, tx.Rollback(t.Context()))
	assert.Equal(t, []string{"pending"}, c.states())
	require.NoError(t, c.ledger.Complete(t.Context(), nil, "charge:1", effect.WasDone("ch_1")), "by itself")
	assert.Equal(t, []string{"done"}, c.states())
}

// The provider calls from many places at once, and some say otherwise: one outcome counts, and the others know that theirs does not. The
// sender of each is killed now and then before its commit.
func TestManyCompleteAtOnce(t *testing.T) {
	t.Parallel()
	c := newCharges(t)
	_, err := c.charge(time.Hour)
	require.ErrorIs(t, err, effect.ErrPending)
	var senders sync.WaitGroup
	var taken [2]atomic.Int32
	for n := range 24 {
		senders.Go(func() {
			killed := n%3 == 0
			err := pgx.BeginFunc(t.Context(), c.pool, func(tx pgx.Tx) error {
				err := c.ledger.Complete(t.Context(), tx, "charge:1", effect.WasDone(fmt.Sprint("ch_", n%2)))
				if killed {
					_, _ = tx.Exec(t.Context(), `select pg_terminate_backend(pg_backend_pid())`)
				}
				return err
			})
			switch {
			case killed:
				assert.Error(t, err)
			case err == nil:
				taken[n%2].Add(1)
			default:
				assert.ErrorIs(t, err, effect.ErrContradicted)
			}
		})
	}
	senders.Wait()
	id, err := c.charge(time.Hour)
	require.NoError(t, err)
	for n := range taken {
		if want := fmt.Sprint("ch_", n) == id; want {
			assert.EqualValues(t, 8, taken[n].Load(), "all that said so")
		} else {
			assert.Zero(t, taken[n].Load())
		}
	}
	assert.EqualValues(t, 1, c.calls.Load())
}

// A process is killed after the provider has taken the effect and before that is recorded. The provider's later call settles it.
func TestCompletedAfterAKill(t *testing.T) {
	t.Parallel()
	f, p := newFixture(t), newProvider(t, false)
	f.killed(p, "after")
	require.NoError(t, f.ledger.Complete(t.Context(), nil, "sms:1", effect.WasDone("SM1")))
	number, err := f.redelivered(p)
	require.NoError(t, err)
	assert.Equal(t, "SM1", number)
	assert.Equal(t, 1, p.texts())
	assert.Empty(t, f.entries("open"))
}

// An event that waits in the claim's table is handled as soon as the provider has told the outcome, long before its retry is due.
func TestCompleteWakesTheEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.NoError(t, outbox.Migrate(t.Context(), f.pool, f.schema))
	require.NoError(t, claim.Migrate(t.Context(), f.pool, f.schema))
	ledger := f.open(f.pool, effect.Config{RetryAfter: 24 * time.Hour})
	c, err := claim.New(claim.NewPostgresStore(f.pool, claim.Schema(f.schema)), claim.Config{
		Service: "labour", MaxAttempts: 1, Logger: slog.New(slog.DiscardHandler), Consumer: func(string) string { return "bill" },
	})
	require.NoError(t, err)
	m, err := memory.New(memory.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	sub, err := m.Subscriber(transport.SubscriberConfig{Consumer: "bill"})
	require.NoError(t, err)
	wrapped := c.Subscriber("bill", sub)
	require.NoError(t, wrapped.(message.SubscribeInitializer).SubscribeInitialize("labour.completed"))
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(c.Middleware, ledger.Middleware)
	handled := make(chan string, 1)
	router.AddConsumerHandler("bill", "labour.completed", wrapped, func(msg *message.Message) error {
		id, err := effect.Value(msg.Context(), "charge:"+msg.UUID, func(context.Context, string) (string, error) { return "", effect.Pending(24 * time.Hour) })
		if err == nil {
			handled <- id
		}
		return err
	})
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(t, router.Run(context.WithoutCancel(t.Context()))) })
	defer running.Wait()
	defer func() { require.NoError(t, router.Close()) }()
	<-router.Running()
	p, err := m.Publisher()
	require.NoError(t, err)
	event := outbox.NewID()
	require.NoError(t, p.Publish("labour.completed", message.NewMessage(event, nil)))
	waits := func() (n int) {
		require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*) from `+f.schema+`.claim_failed where state = 'retrying' and attempts = 0 and due_at > now() + interval '1 hour'`).Scan(&n))
		return n
	}
	require.Eventually(t, func() bool { return waits() == 1 }, time.Minute, 20*time.Millisecond)
	require.NoError(t, ledger.Complete(t.Context(), nil, "charge:"+event, effect.WasDone("ch_1")))
	select {
	case id := <-handled:
		assert.Equal(t, "ch_1", id)
	case <-time.After(time.Minute):
		t.Error("the event still waits")
	}
}
