package pubsub_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// TestASlowTopicDelaysNoOther: no lock is held while a topic is created.
func TestASlowTopicDelaysNoOther(t *testing.T) {
	t.Parallel()
	slow, creating, release := devtest.Topic(t), make(chan struct{}), make(chan struct{})
	_, options := fake(t)
	p := batcher(t, connect(t, pubsub.Config{ClientOptions: append(options, before(func(_ context.Context, _ string, request any) error {
		if r, ok := request.(*pubsubpb.Topic); ok && r.Name == "projects/"+project+"/topics/"+slow {
			close(creating) // a second creation would panic
			<-release
		}
		return nil
	}))}))
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer close(release)
	waiting.Go(func() {
		if err := p.Publish(slow, newMessage("", "x")); err != nil {
			t.Error(err)
		}
	})
	<-creating
	waiting.Go(func() { // shares the creation
		if err := p.Publish(slow, newMessage("", "y")); err != nil {
			t.Error(err)
		}
	})
	require.NoError(t, p.Publish(devtest.Topic(t), newMessage("", "z")))
}

// TestTopicsAreCreatedOnce: many topics at once, each used by many callers at once.
func TestTopicsAreCreatedOnce(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	calls := map[string]int{}
	_, options := fake(t)
	p := batcher(t, connect(t, pubsub.Config{ClientOptions: append(options, before(func(_ context.Context, method string, _ any) error {
		mu.Lock()
		defer mu.Unlock()
		calls[method]++
		return nil
	}))}))
	const topics, callers = 30, 8
	prefix := devtest.Topic(t)
	var publishing sync.WaitGroup
	for i := range topics {
		for range callers {
			publishing.Go(func() {
				if err := p.Publish(fmt.Sprint(prefix, ".", i), newMessage("", "x")); err != nil {
					t.Error(err)
				}
			})
		}
	}
	publishing.Wait()
	require.Equal(t, topics, calls["GetTopic"])
	require.Equal(t, topics, calls["CreateTopic"])
}

// TestMissingTopicIsNotCreated: where Terraform makes the topics, one that is missing is an outage that the error tells
// how to mend, for a relay that waits until it is.
func TestMissingTopicIsNotCreated(t *testing.T) {
	t.Parallel()
	_, options := fake(t)
	p := batcher(t, connect(t, pubsub.Config{ClientOptions: options, Resources: pubsub.CheckOnly}))
	topic := devtest.Topic(t)
	err := p.Publish(topic, newMessage("", "x"))
	require.ErrorIs(t, err, transport.ErrUnavailable)
	require.Equal(t, codes.NotFound, status.Code(err))
	require.ErrorContains(t, err, topic)
	require.ErrorContains(t, err, "gcloud pubsub topics create")

	client := rawClient(t, options)
	_, err = client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: "projects/" + project + "/topics/" + topic})
	require.NoError(t, err)
	require.NoError(t, p.Publish(topic, newMessage("", "x")))
}
