package pubsub

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace-go/millrace/transport"
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
	if err := checkTopic(topic); err != nil {
		return nil, err
	}
	want := t.resources.wanted(topic, config)
	have, err := t.client.SubscriptionAdminClient.GetSubscription(ctx, &pubsubpb.GetSubscriptionRequest{Subscription: want.Name})
	if err != nil {
		return nil, fmt.Errorf("look up subscription %s: %w", want.Name, err)
	}
	all := differences(want, have)
	if dead := t.config.subscription(config.Consumer).DeadLetter.Topic; dead != "" {
		read, err := t.resources.hasSubscription(ctx, dead)
		if err != nil && status.Code(err) != codes.NotFound {
			return nil, err
		}
		if !read {
			all = append(all, Difference{Field: "dead_letter_topic", Have: "without a subscription: what arrives there is lost", Want: "a subscription", Mutable: true})
		}
	}
	return all, nil
}

// settings are those of a subscription that the configuration decides on, each as a text that is the same when the
// service means the same.
var settings = []struct {
	field   string
	mutable bool
	text    func(*pubsubpb.Subscription) string
}{
	{"topic", false, (*pubsubpb.Subscription).GetTopic},
	{"enable_message_ordering", false, func(s *pubsubpb.Subscription) string { return strconv.FormatBool(s.GetEnableMessageOrdering()) }},
	{"filter", false, func(s *pubsubpb.Subscription) string { return fmt.Sprintf("%q", s.GetFilter()) }},
	{"ack_deadline_seconds", true, func(s *pubsubpb.Subscription) string { return fmt.Sprint(cmp.Or(s.GetAckDeadlineSeconds(), 10)) }},
	{"enable_exactly_once_delivery", true, func(s *pubsubpb.Subscription) string { return strconv.FormatBool(s.GetEnableExactlyOnceDelivery()) }},
	{"dead_letter_policy", true, deadLetterText},
	{"retry_policy", true, retryText},
	{"push_config", true, pushText},
	{"expiration_policy", true, expirationText},
}

func differences(want, have *pubsubpb.Subscription) (all []Difference) {
	for _, s := range settings {
		if h, w := s.text(have), s.text(want); h != w {
			all = append(all, Difference{Field: s.field, Have: h, Want: w, Mutable: s.mutable})
		}
	}
	return all
}

func deadLetterText(s *pubsubpb.Subscription) string {
	p := s.GetDeadLetterPolicy()
	if p.GetDeadLetterTopic() == "" {
		return "none"
	}
	return fmt.Sprintf("%s after %d deliveries", p.GetDeadLetterTopic(), cmp.Or(p.GetMaxDeliveryAttempts(), 5))
}

func retryText(s *pubsubpb.Subscription) string {
	p := s.GetRetryPolicy()
	if p == nil {
		return "none"
	}
	return fmt.Sprintf("%s to %s", durationOr(p.GetMinimumBackoff(), defaultRetryMin), durationOr(p.GetMaximumBackoff(), defaultRetryMax))
}

func isPush(s *pubsubpb.Subscription) bool { return s.GetPushConfig().GetPushEndpoint() != "" }

func pushText(s *pubsubpb.Subscription) string {
	if !isPush(s) {
		return "none"
	}
	p := s.GetPushConfig()
	text := "to " + p.GetPushEndpoint()
	if token := p.GetOidcToken(); token == nil {
		text += ", without a token"
	} else {
		text += fmt.Sprintf(", as %s for audience %s", token.GetServiceAccountEmail(), cmp.Or(token.GetAudience(), p.GetPushEndpoint()))
	}
	if raw := p.GetNoWrapper(); raw != nil {
		text += fmt.Sprintf(", unwrapped, metadata %t", raw.GetWriteMetadata())
	}
	return text
}

func expirationText(s *pubsubpb.Subscription) string {
	p := s.GetExpirationPolicy()
	if p != nil && p.GetTtl() == nil {
		return "never"
	}
	return "after " + durationOr(p.GetTtl(), 31*24*time.Hour).String()
}

func durationOr(d *durationpb.Duration, otherwise time.Duration) time.Duration {
	if d == nil {
		return otherwise
	}
	return d.AsDuration()
}
