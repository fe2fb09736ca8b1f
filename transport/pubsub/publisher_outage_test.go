package pubsub_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// TestAnOutageDoesNotMultiplyMessages: a relay gives its batches up before Google's client does, and tries again and again.
// What the client still holds does not grow with each try, and does not come as often when the outage ends.
func TestAnOutageDoesNotMultiplyMessages(t *testing.T) {
	t.Parallel()
	const tries, size, bound = 30, 200, 1000 // the last: publisher_topic.go's maxGivenUp
	for _, key := range []string{"k", ""} {
		down := make(chan struct{})
		server, options := fake(t)
		tr := connect(t, pubsub.Config{ClientOptions: append(options, before(func(_ context.Context, _ string, request any) error {
			if r, ok := request.(*pubsubpb.PublishRequest); ok && len(r.Messages[0].Data) == 0 {
				<-down
			}
			return nil
		}))})
		p, topic := batcher(t, tr), devtest.Topic(t)
		require.NoError(t, p.Publish(topic, newMessage("", "the topic exists")))
		batch := make([]*message.Message, size)
		for i := range batch {
			batch[i] = newMessage("", "")
			if key != "" {
				batch[i] = newMessage(fmt.Sprint(key, i), "")
			}
		}
		for range tries {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			for _, err := range p.PublishBatch(ctx, topic, batch) {
				require.Error(t, err)
			}
			cancel()
		}
		close(down)
		require.Eventually(t, func() bool { // as the relay does
			for _, err := range p.PublishBatch(t.Context(), topic, batch) {
				if err != nil {
					return false
				}
			}
			return true
		}, wait, 10*time.Millisecond)
		require.NoError(t, tr.Close())
		if sent := len(server.Messages()) - 1; key == "" {
			require.LessOrEqual(t, sent, bound+2*size)
		} else {
			require.LessOrEqual(t, sent, 4*size, "once given up, and what the last tries found free")
		}
	}
}
