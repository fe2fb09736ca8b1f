package devstack

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Google's emulator went on sending messages to the streams of consumers that had been killed, so that after a few kills
// most deliveries went nowhere for an ack deadline, time and again.
func TestStreamsOfKilledConsumersEnd(t *testing.T) {
	t.Parallel()
	const subscription, topic = "projects/killed-consumers/subscriptions/consumer", "projects/killed-consumers/topics/topic"
	stack, err := Start(t.Context(), PubSub)
	require.NoError(t, err)
	defer func() { require.NoError(t, stack.Stop()) }()
	dial := func() *grpc.ClientConn {
		conn, err := grpc.NewClient(stack.PubSubHost(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		return conn
	}
	conn := dial()
	publisher, subscriber := pubsubpb.NewPublisherClient(conn), pubsubpb.NewSubscriberClient(conn)
	_, err = publisher.CreateTopic(t.Context(), &pubsubpb.Topic{Name: topic})
	require.NoError(t, err)
	_, err = subscriber.CreateSubscription(t.Context(), &pubsubpb.Subscription{Name: subscription, Topic: topic, AckDeadlineSeconds: 600})
	require.NoError(t, err)
	publish := func(n int) {
		for range n {
			_, err := publisher.Publish(t.Context(), &pubsubpb.PublishRequest{Topic: topic, Messages: []*pubsubpb.PubsubMessage{{Data: []byte("x")}}})
			require.NoError(t, err)
		}
	}
	open := func(conn *grpc.ClientConn) pubsubpb.Subscriber_StreamingPullClient {
		stream, err := pubsubpb.NewSubscriberClient(conn).StreamingPull(t.Context())
		require.NoError(t, err)
		require.NoError(t, stream.Send(&pubsubpb.StreamingPullRequest{Subscription: subscription, StreamAckDeadlineSeconds: 600}))
		return stream
	}
	for range 3 { // consumers that come, may get something, and are killed
		killed := dial()
		stream := open(killed)
		time.AfterFunc(500*time.Millisecond, func() { _ = killed.Close() })
		publish(1)
		for {
			if _, err := stream.Recv(); err != nil {
				break
			}
		}
	}

	stream := open(conn)
	var received atomic.Int64
	var receiving sync.WaitGroup
	defer receiving.Wait()
	defer func() { require.NoError(t, conn.Close()) }()
	receiving.Go(func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			received.Add(int64(len(r.ReceivedMessages)))
		}
	})
	// The streams end soon after their clients, not at once; so a whole round must come, not the first.
	const round = 60
	require.Eventually(t, func() bool {
		want := received.Load() + round
		publish(round)
		for range 300 { // pstest is slow
			if received.Load() >= want {
				return true
			}
			<-time.After(10 * time.Millisecond)
		}
		return false
	}, time.Minute, 10*time.Millisecond, "messages still go to the streams of killed consumers")
}
