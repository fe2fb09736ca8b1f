package publish

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/ThreeDotsLabs/watermill/message"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/conn"
)

// maxApart is how many messages are published at once after they were refused together.
const maxApart = 16

// apart publishes the refused messages again, each in a request of its own. Pub/Sub refuses a whole request if one of its messages does not
// fit the topic's schema, and does not say which. Google's client cannot be used for that: it puts messages of other calls in the request.
func (p *Publisher) apart(ctx context.Context, t *topicPublisher, schema string, msgs []*message.Message, results []error) {
	var groups [][]int       // the messages of a key, or one without a key
	keys := map[string]int{} // in groups
	for i, err := range results {
		key := transport.Key(msgs[i])
		n, refused := keys[key]
		switch {
		case refused && key != "":
			groups[n] = append(groups[n], i) // it was not sent
		case status.Code(err) == codes.InvalidArgument:
			keys[key] = len(groups)
			groups = append(groups, []int{i})
		}
	}
	var running sync.WaitGroup
	slots := make(chan struct{}, maxApart)
	for _, group := range groups {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			for n, i := range group {
				results[i] = t.alone(ctx, p.client, msgs[i])
				if status.Code(results[i]) == codes.InvalidArgument {
					results[i] = fmt.Errorf("%w: see that its payload fits the topic's schema, %s: %w", transport.ErrRejected, schema, results[i])
				}
				if results[i] != nil {
					for _, later := range group[n+1:] {
						results[later] = transport.ErrNotSent
					}
					return
				}
			}
		})
	}
	running.Wait()
}

// alone publishes a message in a request of its own, while no other message of its key is in flight. If a context ends first, the key
// goes on when the request has ended.
func (t *topicPublisher) alone(ctx context.Context, client *conn.Client, msg *message.Message) error {
	if err := cmp.Or(ctx.Err(), msg.Context().Err()); err != nil {
		return err
	}
	key := transport.Key(msg)
	if key != "" {
		t.mu.Lock()
		_, busy := t.keys[key]
		if !busy {
			t.keys[key] = &keyState{underWay: 1, stopped: true}
		}
		t.mu.Unlock()
		if busy {
			return transport.ErrNotSent
		}
	}
	_, m := t.marshal(ctx, msg)
	done := make(chan error, 1)
	t.running.Go(func() {
		sending, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.client.PublishSettings.Timeout)
		defer cancel()
		_, err := client.TopicAdminClient.Publish(sending, &pubsubpb.PublishRequest{Topic: t.client.String(), Messages: []*pubsubpb.PubsubMessage{{Data: m.Data, Attributes: m.Attributes, OrderingKey: m.OrderingKey}}})
		t.end(key, err != nil)
		done <- err
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-msg.Context().Done():
		return msg.Context().Err()
	}
}
