package devstack

import (
	"context"
	"strings"
	"sync"
	"testing"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace-go/millrace/framework/devstack/internal/kafkaview"
	"github.com/millrace-go/millrace/framework/devstack/internal/leftover"
)

// Two stacks, one after the other because of the cores, at once on one machine: each service answers, each stack is its
// own, and Stop leaves nothing.
func TestTwoStacks(t *testing.T) {
	dir := scratch(t)
	var stacks []*Stack
	for range 2 {
		stack, err := Start(t.Context(), Postgres, PubSub, Kafka, Redis)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, stack.Stop()) })
		stacks = append(stacks, stack)
		for _, info := range stack.Services() {
			t.Logf("%s in %v: %s at %s", info.Service, info.Took, info.Source, info.Address)
		}
		answers(t, stack)
	}
	first, second := stacks[0], stacks[1]
	for i, info := range first.Services() {
		assert.NotEqual(t, info.Address, second.Services()[i].Address)
	}

	require.NoError(t, first.Stop())
	for _, info := range first.Services() {
		assert.True(t, closed(info.Address), "%s still listens", info.Service)
	}
	answers(t, second) // the end of one stack is nothing to the other
	require.NoError(t, second.Stop())
	require.NoError(t, second.Stop())
	assert.Empty(t, leftover.In(t, dir))
	assert.ErrorContains(t, second.Add(t.Context(), Postgres), "stopped")
}

// answers uses each service of the stack as a program would.
func answers(t *testing.T, stack *Stack) {
	t.Helper()
	ctx := t.Context()

	conn, err := pgx.Connect(ctx, stack.PostgresDSN())
	require.NoError(t, err)
	var settings []string
	err = conn.QueryRow(ctx, `select array_agg(name || '=' || setting order by name) from pg_settings
		where name in ('fsync', 'synchronous_commit', 'max_connections', 'listen_addresses', 'autovacuum')`).Scan(&settings)
	require.NoError(t, err)
	assert.Equal(t, []string{"autovacuum=on", "fsync=off", "listen_addresses=127.0.0.1", "max_connections=600", "synchronous_commit=on"}, settings)
	require.NoError(t, conn.Close(ctx))

	client, err := pubsub.NewClient(ctx, "test", option.WithEndpoint(stack.PubSubHost()), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	require.NoError(t, err)
	topic := "projects/test/topics/" + strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
	if _, err := client.TopicAdminClient.GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: topic}); err != nil {
		_, err = client.TopicAdminClient.CreateTopic(ctx, &pubsubpb.Topic{Name: topic})
		require.NoError(t, err)
	}
	publisher := client.Publisher(topic)
	id, err := publisher.Publish(ctx, &pubsub.Message{Data: []byte("hello")}).Get(ctx)
	require.NoError(t, err)
	assert.NotEmpty(t, id)
	publisher.Stop()
	require.NoError(t, client.Close())

	require.NoError(t, kafkaview.Ask(ctx, stack.KafkaBrokers(), "", 1))
	require.NoError(t, kafkaview.RoundTrip(ctx, stack.KafkaBrokers()))

	require.NoError(t, askRedis(ctx, stack.RedisAddr(), ""))
}

// Tests of one process add services to one stack as they need them: a service is started once, whoever asks.
func TestAdd(t *testing.T) {
	scratch(t)
	var mu sync.Mutex
	ready := map[Service]int{}
	stack := &Stack{hooks: hooks{skipInstalled: true}, Ready: func(info Info) {
		mu.Lock()
		defer mu.Unlock()
		ready[info.Service]++
	}}
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() { assert.NoError(t, stack.Add(t.Context(), PubSub, Kafka)) })
	}
	group.Wait()
	assert.Equal(t, map[Service]int{PubSub: 1, Kafka: 1}, ready)
	assert.Empty(t, stack.PostgresDSN())
	assert.Equal(t, []string{
		"PUBSUB_EMULATOR_HOST=" + stack.PubSubHost(),
		"MILLRACE_KAFKA_BROKERS=" + strings.Join(stack.KafkaBrokers(), ","),
	}, stack.Env())
	require.NoError(t, stack.Stop())
}

func TestServiceNames(t *testing.T) {
	_, err := Start(t.Context())
	assert.ErrorContains(t, err, "pass postgres, pubsub, kafka, kafka3 or redis")
	_, err = Start(t.Context(), Kafka, "rabbit")
	assert.ErrorContains(t, err, `unknown service "rabbit": want postgres, pubsub, kafka, kafka3 or redis`)

	services, err := ParseServices(" postgres, redis,")
	require.NoError(t, err)
	assert.Equal(t, []Service{Postgres, Redis}, services)
	_, err = ParseServices("postgres,rabbit")
	assert.ErrorContains(t, err, `"rabbit"`)
}

// What fails takes the others with it, and the wait for them.
func TestStartFailureStopsTheRest(t *testing.T) {
	dir := scratch(t)
	fetched(t)
	t.Setenv("MILLRACE_KAFKA_HOME", dir)
	_, err := Start(t.Context(), Postgres, PubSub, Kafka)
	require.ErrorContains(t, err, "scripts/kafka fills it")
	assert.Empty(t, leftover.In(t, dir))
}

func TestStartIsCancelled(t *testing.T) {
	dir := scratch(t)
	fetched(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := Start(ctx, Postgres)
		ended <- err
	}()
	require.Eventually(t, func() bool { return len(leftover.In(t, dir)) > 1 }, waitFor, tick) // initdb runs
	cancel()
	assert.ErrorIs(t, <-ended, context.Canceled)
	assert.Empty(t, leftover.In(t, dir))
}
