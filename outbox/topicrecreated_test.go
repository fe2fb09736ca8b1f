package outbox_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	gcp "cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// failures remembers when events failed.
type failures struct {
	transport.BatchPublisher
	mu          sync.Mutex
	first, last time.Time
}

func (p *failures) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	results := p.BatchPublisher.PublishBatch(ctx, topic, msgs)
	if errors.Join(results...) != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.last = time.Now()
		if p.first.IsZero() {
			p.first = p.last
		}
	}
	return results
}

// lasted is how long events have failed.
func (p *failures) lasted() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last.Sub(p.first)
}

// Pub/Sub keeps the subscriptions of a deleted topic, and a new topic of that name does not feed them. The publisher once
// created the topic again: everything published from then on was acknowledged, deleted from the outbox, and reached nobody.
func TestTopicRecreatedLosesNothing(t *testing.T) {
	t.Parallel()
	const project = "millrace-test"
	options := []option.ClientOption{
		option.WithEndpoint(devtest.Real(t, devstack.PubSub).PubSubHost()), // pstest keeps the stream of a deleted subscription open
		option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
	}
	client, err := gcp.NewClient(t.Context(), project, options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	connect := func() *pubsub.Transport { // a process
		tr, err := pubsub.New(t.Context(), pubsub.Config{
			ProjectID: project, ClientOptions: options, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, tr.Close()) })
		return tr
	}
	topic := devtest.Topic(t)
	name := "projects/" + project + "/topics/" + topic
	subscription := "projects/" + project + "/subscriptions/" + topic + ".c"

	subscriber, err := connect().Subscriber(transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, err)
	messages, err := subscriber.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	var received sync.Map
	go func() {
		for msg := range messages { // ends with the transport
			received.Store(string(msg.Payload), true)
			msg.Ack()
		}
	}()

	f := newFixture(t)
	published, err := connect().Publisher()
	require.NoError(t, err)
	p := &failures{BatchPublisher: published.(transport.BatchPublisher)}
	f.run(f.newRelay(p, outbox.RelayConfig{}))
	const n = 20
	commit := func(from int) {
		f.publishMany(topic, n, func(i int) string { return strconv.Itoa(from + i) })
	}
	missing := func(upTo int) (all []string) {
		for i := range upTo {
			if _, ok := received.Load(strconv.Itoa(i)); !ok {
				all = append(all, strconv.Itoa(i))
			}
		}
		return all
	}
	commit(0)
	eventually(t, "the first events arrive", func() bool { return len(missing(n)) == 0 && f.rows() == 0 })

	require.NoError(t, client.TopicAdminClient.DeleteTopic(t.Context(), &pubsubpb.DeleteTopicRequest{Topic: name}))
	commit(n)
	eventually(t, "the relay tries several times", func() bool { return p.lasted() > 2*time.Second || f.rows() == 0 })
	assert.Equal(t, n, f.rows(), "events that the relay keeps")
	_, err = client.TopicAdminClient.GetTopic(t.Context(), &pubsubpb.GetTopicRequest{Topic: name})
	assert.Equal(t, codes.NotFound, status.Code(err), "the publisher created the topic again: %v", err)

	// An operator has read what the subscription holds. The consumer creates it again, and the topic with it.
	require.NoError(t, client.SubscriptionAdminClient.DeleteSubscription(t.Context(), &pubsubpb.DeleteSubscriptionRequest{Subscription: subscription}))
	eventually(t, "all events arrive", func() bool { return len(missing(2*n)) == 0 })
	eventually(t, "the outbox is empty", func() bool { return f.rows() == 0 })
	require.Empty(t, missing(2*n))
}
