package claim_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/memory"
)

// Every other event is delivered twice, near its first delivery, and some handlers fail once: each has one effect.
func TestRaceOfDuplicatesInGroups(t *testing.T) {
	t.Parallel()
	const events = 4_000
	f := newFixture(t)
	c, err := claim.New(f.store, claim.Config{Service: "labour", Group: 50, Backoff: func(int) time.Duration { return time.Millisecond }})
	require.NoError(t, err)
	broker, err := memory.New(memory.Config{})
	require.NoError(t, err)
	defer broker.Close()
	subscriber, err := broker.Subscriber(transport.SubscriberConfig{Consumer: "notify", Concurrency: 200})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(c.Middleware)
	var failed sync.Map
	router.AddConsumerHandler("notify", "events", subscriber, func(msg *message.Message) error {
		if err := f.effect(msg.Context(), msg.UUID); err != nil {
			return err
		}
		if _, before := failed.LoadOrStore(msg.UUID, true); !before && rand.IntN(100) == 0 {
			return errOops
		}
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(t, router.Run(ctx)) })
	<-router.Running()
	publisher, err := broker.Publisher()
	require.NoError(t, err)
	var late []*message.Message
	for i := range events {
		msg := message.NewMessage(fmt.Sprint("event-", i), nil)
		require.NoError(t, publisher.Publish("events", msg))
		if i%2 == 0 {
			late = append(late, msg.Copy())
		}
		if len(late) > rand.IntN(40) {
			require.NoError(t, publisher.Publish("events", late...))
			late = nil
		}
	}
	require.NoError(t, publisher.Publish("events", late...))
	assert.Eventually(t, func() bool { return f.count("processed") == events }, 2*time.Minute, 50*time.Millisecond)
	cancel()
	running.Wait()
	effects := f.effects()
	assert.Len(t, effects, events)
	assert.Zero(t, doubled(effects))
	assert.Zero(t, f.count("claim_failed"), "those that failed have succeeded since")
}

// What a role or a pool sets by default must not weaken a group, and what the group sets is not the handlers'.
func TestHostileDefaultsInAGroup(t *testing.T) {
	t.Parallel()
	f := newLonelyFixture(t)
	f.pool = devtest.PoolOn(t, f.pool.Config().ConnString(), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
		c.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	})
	f.store = claim.NewPostgresStore(f.pool, claim.Schema(f.schema))
	g := f.grouped(claim.Config{HandlerTimeout: time.Minute})
	results := g.handle(func(ctx context.Context, _ string) error {
		tx, _ := pgtx.From(ctx)
		var isolation, durable, scans string
		var idle int
		err := tx.QueryRow(ctx, `select current_setting('transaction_isolation'), current_setting('synchronous_commit'), current_setting('enable_seqscan'),
			(select setting::int from pg_settings where name = 'idle_in_transaction_session_timeout')`).Scan(&isolation, &durable, &scans, &idle)
		assert.Equal(t, []string{"read committed", "on", "on"}, []string{isolation, durable, scans})
		assert.Equal(t, 125_000, idle, "milliseconds: two handlers' time and some slack")
		return err
	}, letters(2)...)
	assert.Equal(t, []result{{}, {}}, results)
}
