package publish

import (
	"context"
	"testing"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace-go/millrace/transport"
)

// holds answers requests when it is closed.
type holds chan struct{}

func (h holds) React(any) (handled bool, ret any, err error) {
	<-h
	return false, nil, nil
}

// The call's context ends, and then the results of two messages of a key come, between the looks at the first and at the second. The
// caller publishes the first one again, so it must not learn that the second one was acknowledged.
func TestNoMessageIsAcknowledgedBehindOneThatWasGivenUp(t *testing.T) {
	ctx := t.Context()
	client := func(options ...pstest.ServerReactorOption) *pubsub.Publisher {
		server := pstest.NewServer(options...)
		t.Cleanup(func() { assert.NoError(t, server.Close()) })
		client, err := pubsub.NewClient(ctx, "p", option.WithEndpoint(server.Addr), option.WithoutAuthentication(),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, client.Close()) })
		_, err = client.TopicAdminClient.CreateTopic(ctx, &pubsubpb.Topic{Name: "projects/p/topics/t"})
		require.NoError(t, err)
		publisher := client.Publisher("t")
		publisher.EnableMessageOrdering = true
		t.Cleanup(publisher.Stop)
		return publisher
	}
	hold := make(holds)
	slow := client(pstest.ServerReactorOption{FuncName: "Publish", Reactor: hold})
	fast := client()
	late := slow.Publish(ctx, &pubsub.Message{Data: []byte("1"), OrderingKey: "k"})
	soon := fast.Publish(ctx, &pubsub.Message{Data: []byte("2"), OrderingKey: "k"})
	other := fast.Publish(ctx, &pubsub.Message{Data: []byte("3"), OrderingKey: "other"})
	<-soon.Ready()
	<-other.Ready()

	topic := &topicPublisher{client: slow, keys: map[string]*keyState{"k": {underWay: 2}, "other": {underWay: 1}}}
	var msgs []*message.Message
	for _, key := range []string{"k", "k", "other"} {
		msg := message.NewMessage(key, nil)
		transport.SetKey(msg, key)
		msgs = append(msgs, msg)
	}
	ended, end := context.WithCancel(ctx)
	end()
	results := make([]error, len(msgs))
	topic.await(ended, msgs, []*pubsub.PublishResult{late, soon, other}, results)
	assert.Equal(t, []error{context.Canceled, context.Canceled, nil}, results)
	close(hold)
	topic.running.Wait()
	assert.Empty(t, topic.keys, "the key may be used again")
}
