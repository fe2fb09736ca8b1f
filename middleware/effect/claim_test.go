package effect_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// Twenty handlers, each of which holds the pool's only connection in its claim while it uses the ledger. The first attempt
// of each fails after its effect, so the claim rolls back and the record must not.
func TestInsideClaimsThatHoldTheWholePool(t *testing.T) {
	t.Parallel()
	const handlers = 20
	f, p := newFixture(t), newProvider(t, false)
	require.NoError(t, outbox.Migrate(t.Context(), f.pool, f.schema))
	require.NoError(t, claim.Migrate(t.Context(), f.pool, f.schema))
	f.exec(`create table ` + f.schema + `.notification (event_id text, number text)`)
	pool := devtest.PoolOn(t, f.pool.Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 1 })
	ledger := f.open(pool, effect.Config{MaxConns: 1})
	require.NoError(t, ledger.Check(t.Context()))

	c, err := claim.New(claim.NewPostgresStore(pool, claim.Schema(f.schema)), claim.Config{Service: "labour", Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(c.Middleware, ledger.Middleware)
	events := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: handlers}, watermill.NopLogger{})
	var failed sync.Map
	for i := range handlers {
		router.AddConsumerHandler(fmt.Sprint("notify ", i), fmt.Sprint("labour.completed.", i), events, func(msg *message.Message) error {
			number, err := effect.Value(msg.Context(), "sms:"+msg.UUID, client{p.URL}.send)
			if err != nil {
				return err
			}
			tx, _ := pgtx.From(msg.Context())
			if _, err := tx.Exec(msg.Context(), `insert into `+f.schema+`.notification values ($1, $2)`, msg.UUID, number); err != nil {
				return err
			}
			if _, again := failed.LoadOrStore(msg.UUID, true); !again {
				return errOops
			}
			return nil
		})
	}
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(t, router.Run(context.WithoutCancel(t.Context()))) })
	<-router.Running()
	for i := range handlers {
		require.NoError(t, events.Publish(fmt.Sprint("labour.completed.", i), message.NewMessage(outbox.NewID(), nil)))
	}
	notified := func() (n, numbers int) {
		require.NoError(t, f.pool.QueryRow(context.Background(), `select count(*), count(distinct number) from `+f.schema+`.notification`).Scan(&n, &numbers))
		return n, numbers
	}
	assert.Eventually(t, func() bool { n, _ := notified(); return n == handlers }, 60*time.Second, 20*time.Millisecond)
	_, numbers := notified()
	assert.Equal(t, handlers, numbers, "each with the number of its own message")
	assert.Equal(t, handlers, p.texts(), "one text message each, though each handler ran twice")
	require.NoError(t, router.Close())
	running.Wait()
	require.NoError(t, events.Close())
}

// The negative control of the above: on the service's own pool the handlers wait for one another for ever.
func TestOneSharedPoolWouldDeadlock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pool := devtest.PoolOn(t, f.pool.Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := pgtx.Run(ctx, pool, func(ctx context.Context, _ pgx.Tx) error {
		_, err := pool.Exec(ctx, `select 1`) // what a ledger on this pool would do
		return err
	})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, pgtx.Run(effect.With(t.Context(), f.open(pool, effect.Config{})), pool, func(ctx context.Context, _ pgx.Tx) error {
		return effect.Once(ctx, "key", func(context.Context, string) error { return nil })
	}))
}

// Where the server gives the ledger no connection, the handler gets an error in a bounded time, and lets go of its own. Nothing was
// called, so that is no attempt: an outage of some minutes made dead letters of all events with effects.
func TestNoRoomForTheLedger(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	role := f.schema + "_r"
	f.exec(`create role ` + role + ` login password 'x' connection limit 1`)
	t.Cleanup(func() { f.exec(`drop owned by ` + role + `; drop role ` + role) })
	grants, err := effect.Grants(f.schema, effect.GrantRoles{Consumer: role})
	require.NoError(t, err)
	f.exec(grants)
	pool := devtest.PoolOn(t, f.pool.Config().ConnString(), func(c *pgxpool.Config) {
		c.MaxConns, c.ConnConfig.User, c.ConnConfig.Password = 1, role, "x"
	})
	require.NoError(t, outbox.Migrate(t.Context(), f.pool, f.schema))
	require.NoError(t, claim.Migrate(t.Context(), f.pool, f.schema))
	c, err := claim.New(claim.NewPostgresStore(f.pool, claim.Schema(f.schema)), claim.Config{
		Service: "labour", MaxAttempts: 1, Consumer: func(string) string { return "notify" }, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	ledger := f.open(pool, effect.Config{MaxConns: 2, RecordTimeout: time.Second})
	require.ErrorContains(t, ledger.Check(t.Context()), "the server lets this role have 1 connections, and 3 may be needed")
	ledger.Close()
	ledger = f.open(pool, effect.Config{MaxConns: 2, RecordTimeout: time.Second})
	require.Eventually(t, func() bool { return pool.Ping(t.Context()) == nil }, time.Minute, 10*time.Millisecond,
		"the server has noticed that the ledger's connection is closed")
	require.NoError(t, pgtx.Run(effect.With(t.Context(), ledger), pool, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `select 1`)
		require.NoError(t, err)
		require.ErrorContains(t, ledger.Check(ctx), "no connection beside the service's pool of 1: leave room for Config.MaxConns (2) more")
		err = effect.Once(ctx, "key", func(context.Context, string) error { t.Error("called"); return nil })
		require.ErrorContains(t, err, "no answer of the database within 1s")
		require.NotErrorIs(t, err, effect.ErrInDoubt)
		_, err = c.Middleware(ledger.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			return nil, effect.Once(msg.Context(), "key", func(context.Context, string) error { t.Error("called"); return nil })
		}))(message.NewMessageWithContext(t.Context(), outbox.NewID(), nil))
		require.ErrorContains(t, err, "no answer of the database within 1s")
		return nil
	}))
	var failed int
	require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*) from `+f.schema+`.claim_failed`).Scan(&failed))
	assert.Zero(t, failed)
}

// A server that does not answer has not refused a connection: Check says so, and does not only advise to leave room.
func TestCheckOfAServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	cfg, err := pgxpool.ParseConfig("host=localhost pool_max_conns=3")
	require.NoError(t, err)
	cfg.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer pool.Close()
	ledger, err := effect.New(pool, effect.Config{Service: "shop", MaxConns: 2})
	require.NoError(t, err)
	defer ledger.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.ErrorContains(t, ledger.Check(ctx), "no connection beside the service's pool of 3: the server did not answer in time.")
}

// The middleware leaves the message's context as it was.
func TestMiddleware(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	msg := message.NewMessageWithContext(t.Context(), "1", nil)
	oops := errors.New("oops")
	_, err := f.ledger.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		_, err := once(msg.Context(), nil)
		return nil, errors.Join(err, oops)
	})(msg)
	require.ErrorIs(t, err, oops)
	assert.Equal(t, t.Context(), msg.Context())
	assert.Len(t, f.entries("done"), 1)
}

// An event whose effect is in doubt is never given up: what is missing is an answer, and waiting for it is no attempt.
func TestDoubtIsNoAttempt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.NoError(t, outbox.Migrate(t.Context(), f.pool, f.schema))
	require.NoError(t, claim.Migrate(t.Context(), f.pool, f.schema))
	c, err := claim.New(claim.NewPostgresStore(f.pool, claim.Schema(f.schema)), claim.Config{
		Service:  "labour",
		Consumer: func(string) string { return "notify" }, MaxAttempts: 1, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	event, calls := outbox.NewID(), 0
	deliver := func(outcome error) (processed int) {
		handler := c.Middleware(f.ledger.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			return nil, effect.Once(msg.Context(), "sms:"+msg.UUID, func(context.Context, string) error { calls++; return outcome })
		}))
		_, _ = handler(message.NewMessageWithContext(t.Context(), event, nil)) // nacked or an error: it comes back
		require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*) from `+f.schema+`.processed`).Scan(&processed))
		return processed
	}
	for range 5 {
		assert.Zero(t, deliver(errOops), "neither done nor a dead letter")
	}
	assert.Equal(t, 1, calls)
	require.NoError(t, effect.Resolve(t.Context(), f.pool, f.schema, "labour/sms:"+event, effect.Resolution{By: "ada"}))
	assert.Equal(t, 1, deliver(nil))
	assert.Equal(t, 2, calls)
	var dead int
	require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*) from `+f.schema+`.claim_failed where state = 'dead'`).Scan(&dead))
	assert.Zero(t, dead)
}

// The ledger claims at once where the claim is lazy: it records nothing and calls nobody for a duplicate, whatever its key.
func TestLazyClaimIsMadeBeforeTheEffect(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.NoError(t, outbox.Migrate(t.Context(), f.pool, f.schema))
	require.NoError(t, claim.Migrate(t.Context(), f.pool, f.schema))
	ledger := f.open(f.pool, effect.Config{})
	c, err := claim.New(claim.NewPostgresStore(f.pool, claim.Schema(f.schema)), claim.Config{
		Service: "labour", Lazy: true, Logger: slog.New(slog.DiscardHandler), Consumer: func(string) string { return "notify" },
	})
	require.NoError(t, err)
	id, calls := outbox.NewID(), 0
	for range 3 {
		msg := message.NewMessageWithContext(t.Context(), id, nil)
		_, err := c.Middleware(ledger.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			err := effect.Once(msg.Context(), "sms:"+outbox.NewID(), func(context.Context, string) error { calls++; return nil })
			if calls > 1 || err != nil {
				require.ErrorIs(t, err, claim.ErrCompleted)
			}
			return nil, err
		}))(msg)
		require.NoError(t, err)
	}
	assert.Equal(t, 1, calls)
}
