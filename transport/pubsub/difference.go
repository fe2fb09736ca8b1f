package pubsub

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/millrace-go/millrace/transport"
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
	return append(all, labelDifferences(want.GetLabels(), have.GetLabels())...)
}

// labelDifferences looks only for labels that are wanted: others may be Terraform's.
func labelDifferences(want, have map[string]string) []Difference {
	found := Labels{}
	for key := range want {
		if value, ok := have[key]; ok {
			found[key] = value
		}
	}
	if maps.Equal(found, Labels(want)) {
		return nil
	}
	return []Difference{{Field: "labels", Have: cmp.Or(found.String(), "none"), Want: Labels(want).String(), Mutable: true}}
}

// merged returns have's labels with those that are wanted.
func merged(have, want map[string]string) map[string]string {
	all := maps.Clone(want)
	if all == nil {
		all = map[string]string{}
	}
	for key, value := range have {
		if _, ok := all[key]; !ok {
			all[key] = value
		}
	}
	return all
}

func maskOf(all []Difference) *fieldmaskpb.FieldMask {
	mask := &fieldmaskpb.FieldMask{}
	for _, d := range all {
		mask.Paths = append(mask.Paths, d.Field)
	}
	return mask
}

// named is a topic as the configuration has it.
func (c TopicConfig) named(name string) *pubsubpb.Topic {
	t := &pubsubpb.Topic{Name: name, Labels: c.Labels, KmsKeyName: c.KMSKey}
	if c.Retention > 0 {
		t.MessageRetentionDuration = durationpb.New(c.Retention)
	}
	if len(c.StorageRegions) > 0 {
		t.MessageStoragePolicy = &pubsubpb.MessageStoragePolicy{AllowedPersistenceRegions: c.StorageRegions}
	}
	return t
}

// topicSettings are those of a topic that the configuration may decide on, each as a text; "" says nothing.
var topicSettings = []struct {
	field string
	text  func(*pubsubpb.Topic) string
}{
	{"message_retention_duration", func(t *pubsubpb.Topic) string {
		if t.GetMessageRetentionDuration() == nil {
			return ""
		}
		return t.GetMessageRetentionDuration().AsDuration().String()
	}},
	{"message_storage_policy", func(t *pubsubpb.Topic) string {
		return strings.Join(slices.Sorted(slices.Values(t.GetMessageStoragePolicy().GetAllowedPersistenceRegions())), ",")
	}},
	{"kms_key_name", (*pubsubpb.Topic).GetKmsKeyName},
}

func topicDifferences(want, have *pubsubpb.Topic) []Difference {
	all := labelDifferences(want.GetLabels(), have.GetLabels())
	for _, s := range topicSettings {
		if h, w := s.text(have), s.text(want); w != "" && h != w {
			all = append(all, Difference{Field: s.field, Have: cmp.Or(h, "none"), Want: w, Mutable: true})
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
