package pubsub_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// refusals is a server that refuses publish requests.
type refusals struct {
	mu       sync.Mutex
	refuse   func(*pubsubpb.PublishRequest) error // nil accepts
	requests int
}

func (r *refusals) set(refuse func(*pubsubpb.PublishRequest) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = refuse
}

// React implements pstest.Reactor.
func (r *refusals) React(request any) (bool, any, error) {
	r.mu.Lock()
	refuse := r.refuse
	r.requests++
	r.mu.Unlock()
	if refuse == nil {
		return false, nil, nil
	}
	if err := refuse(request.(*pubsubpb.PublishRequest)); err != nil {
		return true, &pubsubpb.PublishResponse{}, err
	}
	return false, nil, nil
}

func (r *refusals) option() pstest.ServerReactorOption {
	return pstest.ServerReactorOption{FuncName: "Publish", Reactor: r}
}

func refuseKey(key string) func(*pubsubpb.PublishRequest) error {
	return func(request *pubsubpb.PublishRequest) error {
		if request.Messages[0].OrderingKey == key {
			return status.Error(codes.FailedPrecondition, "refused")
		}
		return nil
	}
}

func payloads(server *pstest.Server, key string) []string {
	var got []string
	for _, m := range server.Messages() {
		if m.OrderingKey == key {
			got = append(got, string(m.Data))
		}
	}
	return got
}

// TestKeyGoesOnAfterAFailure: Google's client pauses a key after an error and refuses it for ever. Ours holds the later
// ones back, lets other keys pass, and sends all in order on the next attempt.
func TestKeyGoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	var r refusals
	server, options := fake(t, r.option())
	p := batcher(t, connect(t, pubsub.Config{ClientOptions: options}))
	topic := devtest.Topic(t)
	r.set(refuseKey("a"))

	const n = 250 // several requests of 100
	var batch []*message.Message
	var want []string
	for i := range n {
		batch = append(batch, newMessage("a", fmt.Sprint(i)), newMessage("b", fmt.Sprint(i)))
		want = append(want, fmt.Sprint(i))
	}
	for range 3 {
		results := p.PublishBatch(t.Context(), topic, batch)
		for i, err := range results {
			switch {
			case i%2 == 1:
				require.NoError(t, err)
			case i == 0:
				require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
			default:
				require.ErrorIs(t, err, transport.ErrNotSent)
			}
		}
	}
	require.Empty(t, payloads(server, "a"))
	r.set(nil)
	for _, err := range p.PublishBatch(t.Context(), topic, batch) {
		require.NoError(t, err)
	}
	require.Equal(t, want, payloads(server, "a"))
}

// TestQueueOfAFailedKeyIsNotSent: resuming a key at its first error would let the requests through that Google's client
// had queued behind the one that failed. Only the first request of each batch is refused, so they would be accepted.
func TestQueueOfAFailedKeyIsNotSent(t *testing.T) {
	t.Parallel()
	var r refusals
	server, options := fake(t, r.option())
	p := batcher(t, connect(t, pubsub.Config{ClientOptions: options}))
	topic := devtest.Topic(t)
	r.set(func(request *pubsubpb.PublishRequest) error {
		if string(request.Messages[0].Data) == "0" {
			return status.Error(codes.FailedPrecondition, "refused")
		}
		return nil
	})
	const n = 500 // five requests
	for range 40 {
		batch := make([]*message.Message, n)
		for i := range batch {
			batch[i] = newMessage("a", fmt.Sprint(i))
		}
		for i, err := range p.PublishBatch(t.Context(), topic, batch) {
			require.Error(t, err, "message %d", i)
		}
	}
	require.Empty(t, server.Messages())
}

// TestNothingOvertakes: many callers publish to one key while the server refuses at random. Whatever a caller repeats
// after a failure, the first acknowledged appearance of its messages is in its order.
func TestNothingOvertakes(t *testing.T) {
	t.Parallel()
	var r refusals
	server, options := fake(t, r.option())
	p := batcher(t, connect(t, pubsub.Config{ClientOptions: options}))
	topic := devtest.Topic(t)
	requests := 0
	r.set(func(*pubsubpb.PublishRequest) error { // the server calls it one at a time
		if requests++; requests%3 == 0 {
			return status.Error(codes.FailedPrecondition, "refused")
		}
		return nil
	})
	const callers, rounds, size = 4, 10, 5
	var group sync.WaitGroup
	for c := range callers {
		group.Go(func() {
			for round := range rounds {
				left := make([]*message.Message, size)
				for i := range left {
					left[i] = newMessage("k", fmt.Sprintf("%d:%03d", c, round*size+i))
				}
				for len(left) > 0 {
					if t.Context().Err() != nil {
						return
					}
					var again []*message.Message
					for i, err := range p.PublishBatch(t.Context(), topic, left) {
						if err != nil {
							again = append(again, left[i])
						} else if len(again) > 0 {
							t.Errorf("%s was sent after an earlier message of its key had failed", left[i].Payload)
						}
					}
					left = again
				}
			}
		})
	}
	group.Wait()
	last := map[byte]string{}
	for _, payload := range payloads(server, "k") {
		require.Greater(t, payload, last[payload[0]])
		last[payload[0]] = payload
	}
	require.Len(t, server.Messages(), callers*rounds*size)
}

// TestPublishReturnsAtItsDeadline: a caller whose context ends gets its results at once, and the key is usable when the
// server has answered.
func TestPublishReturnsAtItsDeadline(t *testing.T) {
	t.Parallel()
	var r refusals
	_, options := fake(t, r.option())
	p := batcher(t, connect(t, pubsub.Config{ClientOptions: options}))
	topic := devtest.Topic(t)
	require.NoError(t, p.Publish(topic, newMessage("", "the topic exists")))
	release := make(chan struct{})
	r.set(func(*pubsubpb.PublishRequest) error {
		<-release
		return status.Error(codes.FailedPrecondition, "refused")
	})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	for _, err := range p.PublishBatch(ctx, topic, []*message.Message{newMessage("k", "1"), newMessage("", "2")}) {
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	r.set(nil)
	close(release)
	require.Eventually(t, func() bool {
		return p.PublishBatch(t.Context(), topic, []*message.Message{newMessage("k", "3")})[0] == nil
	}, wait, 10*time.Millisecond)
}

// TestWithoutAdminRights: an account that may only publish and receive does not need to look up or create anything.
func TestWithoutAdminRights(t *testing.T) {
	t.Parallel()
	_, options := fake(t)
	topic := devtest.Topic(t)
	owner := connect(t, pubsub.Config{ClientOptions: options})
	_, messages := subscribe(t, owner, topic, transport.SubscriberConfig{Consumer: "c"})

	var calls []string
	var mu sync.Mutex
	denied := connect(t, pubsub.Config{ClientOptions: append(options, deny(func(method string) {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, method)
	}))})
	for range 2 {
		require.NoError(t, batcher(t, denied).Publish(topic, newMessage("", "x")))
		next(t, messages).Ack()
	}
	require.Len(t, calls, 1, "looked up once")
}

// TestRequestOfTheLargestMessage: what Limits allows fits into a request, whatever the message's size consists of.
func TestRequestOfTheLargestMessage(t *testing.T) {
	t.Parallel()
	tr := connect(t, pubsub.Config{ClientOptions: genuine(t)})
	topic := "t" + strings.Repeat("x", 242) + strings.ToLower(rand.Text()[:12])
	large := newMessage(strings.Repeat("k", pubsub.Limits.KeyBytes), "")
	for i := range pubsub.Limits.MetadataEntries {
		large.Metadata[fmt.Sprintf("%0256d", i)] = strings.Repeat("v", pubsub.Limits.MetadataValueBytes)
	}
	large.Payload = bytes.Repeat([]byte("x"), pubsub.Limits.MessageBytes-transport.Size(large))
	require.NoError(t, batcher(t, tr).Publish(topic, large))
}
