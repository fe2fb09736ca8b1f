package pubsub_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// before calls f before each unary call of the client, whose method is named without its service. An error of f is the
// call's result.
func before(f func(ctx context.Context, method string, request any) error) option.ClientOption {
	return option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if err := f(ctx, method[strings.LastIndexByte(method, '/')+1:], request); err != nil {
			return err
		}
		return invoke(ctx, method, request, reply, cc, opts...)
	}))
}

// hold keeps publish requests of the keys that begin so under way until it is closed, and then answers with result.
func hold(key string, result error) (release chan struct{}, _ option.ClientOption) {
	release = make(chan struct{})
	return release, before(func(_ context.Context, _ string, request any) error {
		if r, ok := request.(*pubsubpb.PublishRequest); ok && strings.HasPrefix(r.Messages[0].OrderingKey, key) {
			select {
			case <-release:
				return nil
			default:
			}
			<-release
			return result
		}
		return nil
	})
}

// expiring returns a message whose context ends soon.
func expiring(t *testing.T, key, payload string) *message.Message {
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	t.Cleanup(cancel)
	msg := newMessage(key, payload)
	msg.SetContext(ctx)
	return msg
}

// TestEachMessageHasItsDeadline: a message's own context ends the wait for its result and for no other's.
func TestEachMessageHasItsDeadline(t *testing.T) {
	t.Parallel()
	release, held := hold("slow", nil)
	server, options := fake(t)
	p := batcher(t, connect(t, pubsub.Config{ClientOptions: append(options, held)}))
	topic := devtest.Topic(t)
	require.NoError(t, p.Publish(topic, newMessage("", "the topic exists")))
	results := p.PublishBatch(t.Context(), topic, []*message.Message{
		expiring(t, "slow", "1"), newMessage("fast", "a"), newMessage("", "b"),
	})
	require.ErrorIs(t, results[0], context.DeadlineExceeded)
	require.NoError(t, results[1])
	require.NoError(t, results[2])
	require.ErrorIs(t, p.Publish(topic, expiring(t, "slow, too", "2")), context.DeadlineExceeded, "Publish takes no context")

	// What was given up is under way all the same, and is not overtaken.
	require.ErrorIs(t, p.Publish(topic, newMessage("slow", "3")), transport.ErrNotSent)
	close(release)
	require.Eventually(t, func() bool { return p.Publish(topic, newMessage("slow", "3")) == nil }, wait, 10*time.Millisecond)
	require.Equal(t, []string{"1", "3"}, payloads(server, "slow"))
}

// TestAnExpiredMessageIsNotSent: nor are the later ones of its key, which would overtake it.
func TestAnExpiredMessageIsNotSent(t *testing.T) {
	t.Parallel()
	server, options := fake(t)
	p := batcher(t, connect(t, pubsub.Config{ClientOptions: options}))
	topic := devtest.Topic(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expired, free := newMessage("k", "1"), newMessage("", "free")
	expired.SetContext(ctx)
	free.SetContext(ctx)
	results := p.PublishBatch(t.Context(), topic, []*message.Message{expired, newMessage("k", "2"), free, newMessage("", "other")})
	require.ErrorIs(t, results[0], context.Canceled)
	require.ErrorIs(t, results[1], transport.ErrNotSent)
	require.ErrorIs(t, results[2], context.Canceled)
	require.NoError(t, results[3])
	require.Len(t, server.Messages(), 1)
	require.NoError(t, p.Publish(topic, newMessage("k", "2")), "the key is usable")
}

// TestAKeyWaitsForWhatWasGivenUp: a failure that nobody waits for any more still holds the later ones of its key back.
func TestAKeyWaitsForWhatWasGivenUp(t *testing.T) {
	t.Parallel()
	release, held := hold("k", status.Error(codes.FailedPrecondition, "refused"))
	server, options := fake(t)
	p := batcher(t, connect(t, pubsub.Config{ClientOptions: append(options, held)}))
	topic := devtest.Topic(t)
	require.NoError(t, p.Publish(topic, newMessage("", "the topic exists")))
	const request = 100 // the client's
	batch := make([]*message.Message, request+1)
	for i := range request {
		batch[i] = expiring(t, "k", "given up")
	}
	batch[request] = newMessage("k", "behind them")
	context.AfterFunc(batch[request-1].Context(), func() { close(release) })
	results := p.PublishBatch(t.Context(), topic, batch)
	require.Error(t, results[0]) // of its context, or of the service if that was faster
	require.ErrorIs(t, results[request], transport.ErrNotSent)
	require.Empty(t, payloads(server, "k"))
	require.Eventually(t, func() bool { return p.Publish(topic, batch[request]) == nil }, wait, 10*time.Millisecond)
}

// TestDeadlineWhileTheTopicIsCreated: the message's context counts from the beginning.
func TestDeadlineWhileTheTopicIsCreated(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	_, options := fake(t)
	p := batcher(t, connect(t, pubsub.Config{ClientOptions: append(options, before(func(_ context.Context, method string, _ any) error {
		if method == "CreateTopic" {
			<-release
		}
		return nil
	}))}))
	topic := devtest.Topic(t)
	results := p.PublishBatch(t.Context(), topic, []*message.Message{expiring(t, "", "1"), expiring(t, "", "2")})
	for _, err := range results {
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	close(release)
	require.NoError(t, p.Publish(topic, newMessage("", "3")))
}
