package pubsub

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/transport"
)

// createTimeout bounds the calls that look up or create one topic or subscription.
const createTimeout = 30 * time.Second

// resources creates topics and subscriptions that are missing, and remembers which exist. Failures are not remembered.
//
// An account that may not look them up or create them can still publish and receive: then they are taken to exist, and
// publishing or receiving tells when they do not.
type resources struct {
	client *pubsub.Client
	config Config
	known  sync.Map // full name → struct{}

	flights singleflight.Group
	mu      sync.Mutex // guards running.Add against wait
	closed  bool
	running sync.WaitGroup
}

func newResources(client *pubsub.Client, config Config) *resources {
	return &resources{client: client, config: config}
}

func (r *resources) topicName(topic string) string {
	return "projects/" + r.config.ProjectID + "/topics/" + topic
}

func (r *resources) subscriptionName(topic, consumer string) string {
	return "projects/" + r.config.ProjectID + "/subscriptions/" + topic + "." + consumer
}

// ensureTopic creates the topic when it is missing.
func (r *resources) ensureTopic(ctx context.Context, topic string) error {
	return r.once(ctx, r.topicName(topic), r.createTopic)
}

// ensureSubscription creates topic and subscription when they are missing. A subscription that exists with another
// order setting is an error, because Pub/Sub cannot change it.
func (r *resources) ensureSubscription(ctx context.Context, topic string, config transport.SubscriberConfig) (string, error) {
	if err := r.ensureTopic(ctx, topic); err != nil {
		return "", err
	}
	name := r.subscriptionName(topic, config.Consumer)
	if id := name[strings.LastIndexByte(name, '/')+1:]; len(id) > 255 {
		return "", fmt.Errorf("%w: subscription %q has %d bytes, the limit is 255: shorten the topic or the consumer", transport.ErrLimit, id, len(id))
	}
	memo := name
	if config.Ordered {
		memo += " ordered" // so that each setting is checked against what exists
	}
	return name, r.once(ctx, memo, func(ctx context.Context, _ string) error {
		return r.createSubscription(ctx, name, r.topicName(topic), config.Ordered, r.config.subscription(config.Consumer))
	})
}

// forgetTopic and forgetSubscription make the next use look again, after the service has said "not found".
func (r *resources) forgetTopic(topic string) { r.known.Delete(r.topicName(topic)) }

func (r *resources) forgetSubscription(topic string, config transport.SubscriberConfig) {
	name := r.subscriptionName(topic, config.Consumer)
	r.known.Delete(name)
	r.known.Delete(name + " ordered")
	r.forgetTopic(topic)
}

// once runs create for name unless it has succeeded before; concurrent callers share one run, which outlives a caller
// whose ctx ends.
func (r *resources) once(ctx context.Context, name string, create func(context.Context, string) error) error {
	if _, ok := r.known.Load(name); ok {
		return nil
	}
	result := make(chan error, 1)
	flight := func() {
		_, err, _ := r.flights.Do(name, func() (any, error) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTimeout)
			defer cancel()
			if err := create(ctx, name); err != nil {
				return nil, err
			}
			r.known.Store(name, struct{}{})
			return nil, nil
		})
		result <- err
	}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return transport.ErrClosed
	}
	r.running.Go(flight)
	r.mu.Unlock()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait refuses new work and returns after the last goroutine.
func (r *resources) wait() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.running.Wait()
}

func (r *resources) createTopic(ctx context.Context, name string) error {
	_, err := r.client.TopicAdminClient.GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: name})
	if status.Code(err) == codes.NotFound {
		_, err = r.client.TopicAdminClient.CreateTopic(ctx, &pubsubpb.Topic{Name: name})
	}
	if err != nil && !exists(err) {
		return fmt.Errorf("create topic %s: %w", name, err)
	}
	return nil
}

func (r *resources) createSubscription(ctx context.Context, name, topic string, ordered bool, config SubscriptionConfig) error {
	get := &pubsubpb.GetSubscriptionRequest{Subscription: name}
	found, err := r.client.SubscriptionAdminClient.GetSubscription(ctx, get)
	if status.Code(err) == codes.NotFound {
		found, err = r.client.SubscriptionAdminClient.CreateSubscription(ctx, &pubsubpb.Subscription{
			Name:                      name,
			Topic:                     topic,
			AckDeadlineSeconds:        int32(config.AckDeadline / time.Second),
			EnableMessageOrdering:     ordered,
			EnableExactlyOnceDelivery: config.ExactlyOnce,
			// Without a policy Pub/Sub deletes a subscription, and what it holds, after 31 days without a subscriber.
			ExpirationPolicy: &pubsubpb.ExpirationPolicy{},
		})
	}
	if status.Code(err) == codes.AlreadyExists { // another process was faster
		found, err = r.client.SubscriptionAdminClient.GetSubscription(ctx, get)
	}
	if err != nil {
		if exists(err) {
			return nil
		}
		return fmt.Errorf("create subscription %s: %w", name, err)
	}
	if found.GetTopic() != topic { // the topic was deleted: a new one of its name does not feed the subscription
		return fmt.Errorf("subscription %s belongs to topic %s, want %s: delete the subscription, after reading what it holds", name, found.GetTopic(), topic)
	}
	if found.GetEnableMessageOrdering() != ordered {
		return fmt.Errorf("subscription %s exists with message ordering %t, and SubscriberConfig.Ordered is %t: Pub/Sub cannot change it; use another consumer name or delete the subscription",
			name, found.GetEnableMessageOrdering(), ordered)
	}
	return nil
}

// exists tells errors after which the thing is taken to exist: it does, or this account may not find out.
func exists(err error) bool {
	code := status.Code(err)
	return code == codes.AlreadyExists || code == codes.PermissionDenied
}
