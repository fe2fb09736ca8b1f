package pubsub_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// TestPublishOverAFault: what Google's client repeats is seen by nobody. It does so for a minute; then the result is an
// outage.
func TestPublishOverAFault(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{
		codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Internal, codes.Aborted, codes.Unknown, codes.Canceled,
	} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			var r refusals
			server, options := fake(t, r.option())
			p := batcher(t, connect(t, pubsub.Config{ClientOptions: options}))
			topic := devtest.Topic(t)
			require.NoError(t, p.Publish(topic, newMessage("", "the topic exists")))
			var faults atomic.Int64
			r.set(func(*pubsubpb.PublishRequest) error {
				if faults.Add(1) <= 2 {
					return status.Error(code, "injected")
				}
				return nil
			})
			for _, err := range p.PublishBatch(t.Context(), topic, []*message.Message{newMessage("k", "1"), newMessage("k", "2")}) {
				require.NoError(t, err)
			}
			require.Equal(t, []string{"1", "2"}, payloads(server, "k"))
			require.EqualValues(t, 3, faults.Load())
		})
	}
}

// TestResultsOfARefusedRequest: each message of a request that the service refuses as a whole has a result that tells
// whether to send it again, and when.
func TestResultsOfARefusedRequest(t *testing.T) {
	t.Parallel()
	for code, outage := range map[codes.Code]bool{
		codes.InvalidArgument:    false, // of one message, and nobody says of which
		codes.PermissionDenied:   true,
		codes.Unauthenticated:    true,
		codes.FailedPrecondition: true,
		codes.NotFound:           true,
		codes.Unimplemented:      true,
	} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			var r refusals
			server, options := fake(t, r.option())
			p := batcher(t, connect(t, pubsub.Config{ClientOptions: options}))
			topic := devtest.Topic(t)
			batch := []*message.Message{newMessage("", "1"), newMessage("", "2"), newMessage("k", "3"), newMessage("k", "4"), newMessage("l", "5")}
			r.set(func(request *pubsubpb.PublishRequest) error {
				if request.Messages[0].OrderingKey == "l" {
					return nil // a request of its own
				}
				return status.Error(code, "injected")
			})
			results := p.PublishBatch(t.Context(), topic, batch)
			for i, err := range results[:3] {
				require.Equal(t, code, status.Code(err), "message %d: %v", i, err)
				require.Equal(t, outage, errors.Is(err, transport.ErrUnavailable), "message %d: %v", i, err)
				require.NotErrorIs(t, err, transport.ErrRejected)
				require.ErrorContains(t, err, topic)
			}
			require.ErrorIs(t, results[3], transport.ErrNotSent)
			require.NoError(t, results[4])
			require.Len(t, server.Messages(), 1)

			r.set(nil)
			for _, err := range p.PublishBatch(t.Context(), topic, batch[:4]) {
				require.NoError(t, err)
			}
			require.Equal(t, []string{"3", "4"}, payloads(server, "k"))
		})
	}
}

// TestCloseWhilePublishing: every message gets its result, and it is the truth.
func TestCloseWhilePublishing(t *testing.T) {
	t.Parallel()
	server, options := fake(t)
	tr := connect(t, pubsub.Config{ClientOptions: options})
	p := batcher(t, tr)
	topic := devtest.Topic(t)
	var acknowledged sync.Map
	var started, publishing sync.WaitGroup
	const callers = 8
	started.Add(callers)
	for c := range callers {
		publishing.Go(func() {
			for round := 0; ; round++ {
				batch := make([]*message.Message, 100)
				for i := range batch {
					batch[i] = newMessage([]string{"", fmt.Sprint("key-", i%3)}[i%2], fmt.Sprint(c, "/", round, "/", i))
				}
				refused := false
				for i, err := range p.PublishBatch(context.Background(), topic, batch) {
					switch {
					case err == nil:
						acknowledged.Store(string(batch[i].Payload), true)
					case errors.Is(err, transport.ErrClosed), errors.Is(err, transport.ErrNotSent):
						refused = true
					default:
						t.Error(err)
					}
				}
				if round == 0 {
					started.Done()
				}
				if refused {
					return
				}
			}
		})
	}
	started.Wait()
	require.NoError(t, tr.Close())
	publishing.Wait()
	arrived := map[string]bool{}
	for _, m := range server.Messages() {
		arrived[string(m.Data)] = true
	}
	n := 0
	acknowledged.Range(func(payload, _ any) bool {
		n++
		return arrived[payload.(string)]
	})
	require.Len(t, arrived, n, "acknowledged, and arrived")
}
