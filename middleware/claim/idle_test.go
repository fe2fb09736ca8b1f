package claim_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/transport"
)

// counted is a pgx tracer that counts statements.
type counted struct{ n atomic.Int64 }

func (c *counted) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}
func (c *counted) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *counted) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (c *counted) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) { c.n.Add(1) }
func (c *counted) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// A poll stands for a second here.
func TestIdleSubscriptionAsksOnceInTenPolls(t *testing.T) {
	t.Parallel()
	idle := []string{"notifya", "notifyb", "notifyc", "notifyd"}
	for name, prepare := range map[string]func(f *fixture, consumer string){
		"nothing failed": func(*fixture, string) {},
		"dead letters":   func(f *fixture, c string) { f.keep("dead", c, "", "dead", "attempts", "oops") },
		"blocked keys": func(f *fixture, c string) {
			f.keep("dead", c, "key", "dead", "attempts", "oops")
			f.keep("behind", c, "key", "blocked", "", "")
		},
		"events that are due in an hour": func(f *fixture, c string) {
			f.keep("later", c, "", "retrying", "retry", "oops")
			f.sql(`update {schema}.claim_failed set due_at = now() + interval '1 hour'`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			for _, n := range idle {
				prepare(f, "labour/"+n)
			}
			assert.LessOrEqual(t, f.idle(idle...), 0.2)
		})
	}
}

// idle returns how many statements an idle subscription of a consumer executes in the time of a poll.
func (f *fixture) idle(consumers ...string) float64 {
	const poll = 20 * time.Millisecond
	t := f.t
	var statements counted
	cfg := f.pool.Config().Copy()
	cfg.ConnConfig.Tracer = &statements
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	c, err := claim.New(claim.NewPostgresStore(pool, claim.Schema(f.schema)), claim.Config{Service: "labour", Logger: silent})
	require.NoError(t, err)
	claim.PollEvery(c, poll)
	m := f.broker()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(c.Middleware)
	for _, name := range consumers {
		sub, err := m.Connect().Subscriber(transport.SubscriberConfig{Consumer: name})
		require.NoError(t, err)
		router.AddConsumerHandler(name, eventTopic, c.Subscriber(name, sub), f.take)
	}
	f.run(router)
	subscriptions := int64(len(consumers))
	// asks is how many statements a subscription executes in a poll's time, while n statements are executed.
	asks := func(n int64) float64 {
		before, began := statements.n.Load(), time.Now()
		f.eventually(func() bool { return statements.n.Load() >= before+n }, "the subscriptions ask")
		return float64(n) / float64(subscriptions) / (float64(time.Since(began)) / float64(poll))
	}
	asks(10 * subscriptions) // they come to rest
	return asks(20 * subscriptions)
}
