package pubsub

import (
	"context"
	"fmt"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/setting"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// Difference is a setting in which a subscription that exists is not as configured.
type Difference struct {
	// Field is the setting's name in Pub/Sub's API.
	Field string
	// Have and Want are its values in the subscription and in the configuration, for people to read.
	Have, Want string
	// Mutable tells whether Pub/Sub can change it, as Config.Resources does when it is Update. The others make Subscribe
	// fail.
	Mutable bool
}

// Differences compares the consumer's subscription to the topic with the configuration, and changes nothing. That its
// dead-letter topic has no subscription is a difference in "dead_letter_topic". A subscription that does not exist is an
// error of gRPC's code NotFound.
func (t *Transport) Differences(ctx context.Context, topic string, config transport.SubscriberConfig) ([]Difference, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if err := wire.CheckTopic(topic); err != nil {
		return nil, err
	}
	own := t.config.resource(topic, config)
	want := own.Wanted(wire.Project(t.config.ProjectID), topic, config.Consumer)
	have, err := t.client.SubscriptionAdminClient.GetSubscription(ctx, &pubsubpb.GetSubscriptionRequest{Subscription: want.Name})
	if err != nil {
		return nil, fmt.Errorf("look up subscription %s: %w", want.Name, err)
	}
	var all []Difference
	for _, d := range setting.Differences(want, have) {
		all = append(all, Difference(d))
	}
	if dead := own.DeadLetters; dead != "" {
		read, err := t.resources.HasSubscription(ctx, dead)
		if err != nil && status.Code(err) != codes.NotFound {
			return nil, err
		}
		if !read {
			all = append(all, Difference{Field: "dead_letter_topic", Have: "without a subscription: what arrives there is lost", Want: "a subscription", Mutable: true})
		}
	}
	return all, nil
}
