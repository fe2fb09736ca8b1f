package main

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// connectors connect to each broker, with the consumer's messages going to the broker's dead letters after brokerAttempts.
var connectors = map[string]func(t *testing.T, consumer, dead string) (transport.Transport, error){
	"PubSub": func(t *testing.T, consumer, dead string) (transport.Transport, error) {
		return pubsub.New(t.Context(), pubsub.Config{
			ProjectID: "millrace-test",
			Consumers: map[string]pubsub.SubscriptionConfig{consumer: {DeadLetter: pubsub.DeadLetter{Topic: dead, MaxAttempts: brokerAttempts}}},
			ClientOptions: []option.ClientOption{
				option.WithEndpoint(devtest.Start(t, devstack.PubSub).PubSubHost()), option.WithoutAuthentication(),
				option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
			},
		})
	},
	"Kafka": func(t *testing.T, consumer, dead string) (transport.Transport, error) {
		return kafka.New(t.Context(), kafka.Config{
			Brokers:   devtest.Start(t, devstack.Kafka).KafkaBrokers(),
			Consumers: map[string]kafka.ConsumerConfig{consumer: {DeadLetter: kafka.DeadLetter{Topic: dead, MaxAttempts: brokerAttempts}}},
		})
	},
}

// onEachBroker runs the test beside itself, once for each broker.
func onEachBroker(t *testing.T, test func(t *testing.T, broker string)) {
	t.Parallel()
	for broker := range connectors {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			test(t, broker)
		})
	}
}

// service is two processes that consume as one consumer, for which the broker has dead letters of its own.
type service struct {
	*operator
	topic, dead string
	broker      transport.Transport // the first process's
	deliveries  atomic.Int64
}

const brokerAttempts = 5

func startService(t *testing.T, broker string, handle message.NoPublishHandlerFunc) *service {
	s := &service{operator: newOperator(t), topic: devtest.Topic(t), dead: devtest.Topic(t)}
	s.run(cli.ExitOK, "migrate", "up")
	s.exec(`create table {schema}.effects (event_id text)`)
	for range 2 {
		s.broker = s.connect(t, broker)
		c, err := claim.New(claim.NewPostgresStore(s.pool, claim.Schema(s.schema)), claim.Config{
			Service:     "labour",
			MaxAttempts: 3, Backoff: func(int) time.Duration { return 10 * time.Millisecond },
		})
		require.NoError(t, err)
		router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		require.NoError(t, err)
		router.AddMiddleware(s.count, c.Middleware)
		subscriber, err := s.broker.Subscriber(transport.SubscriberConfig{Consumer: "notify"})
		require.NoError(t, err)
		router.AddConsumerHandler("notify", s.topic, c.Subscriber("notify", subscriber), func(msg *message.Message) error {
			if err := handle(msg); err != nil {
				return err
			}
			tx, _ := pgtx.From(msg.Context())
			_, err := tx.Exec(msg.Context(), `insert into `+s.schema+`.effects values ($1)`, msg.UUID)
			return err
		})
		devtest.Run(t, router)
	}
	return s
}

func (s *service) connect(t *testing.T, broker string) transport.Transport {
	tr, err := connectors[broker](t, "notify", s.dead)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

func (s *service) count(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		s.deliveries.Add(1)
		return h(msg)
	}
}

func (s *service) send(topic, id string) {
	p, err := s.broker.Publisher()
	require.NoError(s.t, err)
	require.NoError(s.t, p.Publish(topic, message.NewMessage(id, []byte("{}"))))
}

func (s *service) effects(id string) (n int) {
	require.NoError(s.t, s.pool.QueryRow(s.t.Context(), `select count(*) from `+s.schema+`.effects where event_id = $1`, id).Scan(&n))
	return n
}

// requireNoneBuried fails when the broker has moved anything to its own dead-letter topic.
func (s *service) requireNoneBuried() {
	s.t.Helper()
	subscriber, err := s.broker.Subscriber(transport.SubscriberConfig{Consumer: "dead-letters"})
	require.NoError(s.t, err)
	messages, err := subscriber.Subscribe(s.t.Context(), s.dead)
	require.NoError(s.t, err)
	s.send(s.dead, "sentinel")
	msg := <-messages
	assert.Equal(s.t, "sentinel", msg.UUID)
	msg.Ack()
}

// An event whose handler always fails is dead after the claim's attempts, not the broker's; the command brings it back
// through the same subscriber, and it takes effect once.
func TestDeadLetter(t *testing.T) { onEachBroker(t, testDeadLetter) }

func testDeadLetter(t *testing.T, broker string) {
	var mended atomic.Bool
	s := startService(t, broker, func(*message.Message) error {
		if mended.Load() {
			return nil
		}
		return assert.AnError
	})
	id := outbox.NewID()
	s.send(s.topic, id)
	require.Eventually(t, func() bool {
		var dead int
		require.NoError(t, s.pool.QueryRow(t.Context(), `select count(*) from `+s.schema+`.claim_failed where state = 'dead'`).Scan(&dead))
		return dead == 1
	}, time.Minute, 20*time.Millisecond)
	assert.EqualValues(t, 3, s.deliveries.Load(), "the claim's attempts")
	assert.Regexp(t, id+` +labour/notify +- +dead +3 +\S+ +\S+ +`, s.run(cli.ExitOK, "dead", "list"))
	assert.Zero(t, s.effects(id))

	mended.Store(true)
	assert.Contains(t, s.run(cli.ExitOK, "dead", "replay", id), "1 event will be retried now.\n")
	require.Eventually(t, func() bool { return s.effects(id) > 0 }, time.Minute, 20*time.Millisecond)
	s.requireNoneBuried()
	assert.Equal(t, 1, s.effects(id))
	assert.NotContains(t, s.run(cli.ExitOK, "dead", "list"), id)
}

// An event that another process is handling is put back far more often than the broker's own limit, and is not buried.
func TestContentionBuriesNothing(t *testing.T) { onEachBroker(t, testContentionBuriesNothing) }

func testContentionBuriesNothing(t *testing.T, broker string) {
	release := make(chan struct{})
	s := startService(t, broker, func(*message.Message) error {
		<-release
		return nil
	})
	id := outbox.NewID()
	s.send(s.topic, id)
	s.send(s.topic, id) // delivered twice, as by a relay that died before it noted the first
	require.Eventually(t, func() bool { return s.deliveries.Load() > 2*brokerAttempts }, 60*time.Second, 10*time.Millisecond)
	close(release)
	require.Eventually(t, func() bool { return s.effects(id) == 1 }, time.Minute, 10*time.Millisecond)
	s.requireNoneBuried()
	assert.Equal(t, 1, s.effects(id))
}
