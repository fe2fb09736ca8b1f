package kafka_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// TestRedeliveredByARebalanceHasOneEffect: what handlers have of a partition that goes to another process is delivered
// there too, while they still run. The claim lets one of the two through, whichever ends first, and the other finds the
// event completed. Then the first process is cut off with all that it has.
func TestRedeliveredByARebalanceHasOneEffect(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.PoolOn(t, devtest.Start(t, devstack.Postgres).PostgresDSN(), func(c *pgxpool.Config) { c.MaxConns = 12 }), devtest.Schema(t)
	require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
	require.NoError(t, claim.Migrate(t.Context(), pool, schema))
	_, err := pool.Exec(t.Context(), `create table `+schema+`.effect (event_id text not null)`)
	require.NoError(t, err)
	c := newCluster(t, 2)
	const n = 60
	put := func(i int) { c.put(int32(i%2), fmt.Sprint(i)) }
	put(0)
	put(1)

	release := make(chan struct{})
	var deliveries, entered atomic.Int64
	join := func(config kafka.Config) {
		guard, err := claim.New(claim.NewPostgresStore(pool, claim.Schema(schema)), claim.Config{Service: "labour"})
		require.NoError(t, err)
		router, err := message.NewRouter(message.RouterConfig{CloseTimeout: wait}, watermill.NopLogger{})
		require.NoError(t, err)
		count := func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				deliveries.Add(1)
				return h(msg)
			}
		}
		router.AddMiddleware(count, guard.Middleware)
		config.Brokers = c.ListenAddrs()
		config.Consumer.SessionTimeout = 6 * time.Second
		s, err := connect(t, config).Subscriber(transport.SubscriberConfig{Consumer: "c", Concurrency: 4})
		require.NoError(t, err)
		router.AddConsumerHandler("c", c.topic, s, func(msg *message.Message) error {
			tx, _ := pgtx.From(msg.Context())
			_, err := tx.Exec(msg.Context(), `insert into `+schema+`.effect values ($1)`, msg.UUID)
			entered.Add(1)
			<-release
			return err
		})
		devtest.Run(t, router)
	}
	wire := newFaultNet(nil)
	join(kafka.Config{Dial: wire.dial})
	require.Eventually(t, func() bool { return entered.Load() == 2 }, wait, tick)
	join(kafka.Config{})
	c.shared(2, 1)
	require.Eventually(t, func() bool { return deliveries.Load() > 2 }, wait, tick, "what moved was not delivered again")
	for i := 2; i < n; i++ {
		put(i)
	}
	require.Eventually(t, func() bool { return entered.Load() >= 6 }, wait, tick, "both have their hands full")
	wire.kill()
	require.Eventually(t, func() bool { return len(c.GroupInfo("c").Members) == 1 }, wait, tick)
	close(release)
	c.committed(0, n/2)
	c.committed(1, n/2)
	require.Greater(t, deliveries.Load(), int64(n))
	var effects, events int
	require.NoError(t, pool.QueryRow(t.Context(), `select count(*), count(distinct event_id) from `+schema+`.effect`).Scan(&effects, &events))
	require.Equal(t, n, effects)
	require.Equal(t, n, events)
}
