package pubsub

import (
	"context"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/resource"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// defaultRetention is how long a subscription keeps messages when its configuration does not say.
const defaultRetention = 7 * 24 * time.Hour

// Inspect implements transport.Inspector. Pub/Sub tells no lag: Cloud Monitoring has it, as
// subscription/num_undelivered_messages.
func (t *Transport) Inspect(ctx context.Context, topic, consumer string) (transport.Inspection, error) {
	i := transport.Inspection{Lag: -1}
	found, s, err := t.lookUp(ctx, topic, consumer)
	if err != nil {
		return i, err
	}
	i.Topic = found != nil
	if s == nil {
		return i, nil
	}
	if s.Topic == resource.DeletedTopic { // a topic of the same name, if there is one, does not feed it
		return i, nil
	}
	i.Consumer, i.Retention = true, defaultRetention
	if d := s.GetMessageRetentionDuration().AsDuration(); d > 0 {
		i.Retention = d
	}
	return i, nil
}

// lookUp returns the topic and the consumer's subscription to it: nil for one that does not exist, and without a consumer.
func (t *Transport) lookUp(ctx context.Context, topic, consumer string) (found *pubsubpb.Topic, s *pubsubpb.Subscription, err error) {
	if err := wire.CheckTopic(topic); err != nil {
		return nil, nil, err
	}
	project := wire.Project(t.config.ProjectID)
	found, err = t.client.TopicAdminClient.GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: project.Topic(topic)})
	if err != nil && status.Code(err) != codes.NotFound {
		return nil, nil, fmt.Errorf("look up topic %s: %w", topic, err)
	}
	if consumer == "" {
		return found, nil, nil
	}
	name := project.Subscription(topic, consumer)
	s, err = t.client.SubscriptionAdminClient.GetSubscription(ctx, &pubsubpb.GetSubscriptionRequest{Subscription: name})
	if err != nil && status.Code(err) != codes.NotFound {
		return nil, nil, fmt.Errorf("look up subscription %s: %w", name, err)
	}
	return found, s, nil
}

// Address returns the project and, if it is configured, the endpoint.
func (c Config) Address() string {
	return strings.TrimSpace("project " + c.ProjectID + " " + c.Endpoint)
}

// Address implements transport.Addressed.
func (t *Transport) Address() string { return t.config.Address() }
