package setting

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// Difference is a setting of an existing topic or subscription that differs from the configuration.
type Difference struct {
	// Field is the setting's name in Pub/Sub's API.
	Field string
	// Have and Want are the existing and the configured value, for people to read.
	Have, Want string
	// Mutable reports whether Pub/Sub can change the setting.
	Mutable bool
}

// settings are the settings of a subscription that the configuration controls. Their texts are equal if the service treats the values as
// equal.
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
	{"push_config", true, PushText},
	{"expiration_policy", true, expirationText},
}

// Differences compares an existing subscription with the wanted one.
func Differences(want, have *pubsubpb.Subscription) (all []Difference) {
	for _, s := range settings {
		if h, w := s.text(have), s.text(want); h != w {
			all = append(all, Difference{Field: s.field, Have: h, Want: w, Mutable: s.mutable})
		}
	}
	return append(all, labelDifferences(want.GetLabels(), have.GetLabels())...)
}

// labelDifferences compares only the wanted labels: others may be Terraform's, for example.
func labelDifferences(want, have map[string]string) []Difference {
	found := map[string]string{}
	for key := range want {
		if value, ok := have[key]; ok {
			found[key] = value
		}
	}
	if maps.Equal(found, want) {
		return nil
	}
	return []Difference{{Field: "labels", Have: cmp.Or(labelText(found), "none"), Want: labelText(want), Mutable: true}}
}

func labelText(labels map[string]string) string { return strings.Join(LabelList(labels), ",") }

// LabelList returns the labels as KEY=VALUE, sorted.
func LabelList(labels map[string]string) []string {
	all := make([]string, 0, len(labels))
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, key+"="+labels[key])
	}
	return all
}

// Merged returns have's labels with the wanted ones.
func Merged(have, want map[string]string) map[string]string {
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

// MaskOf returns the mask of the settings that differ, for an update.
func MaskOf(all []Difference) *fieldmaskpb.FieldMask {
	mask := &fieldmaskpb.FieldMask{}
	for _, d := range all {
		mask.Paths = append(mask.Paths, d.Field)
	}
	return mask
}

// topicSettings are the settings of a topic that the configuration may control, each as a text; "" means not set.
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
	{"schema_settings.schema", func(t *pubsubpb.Topic) string { return t.GetSchemaSettings().GetSchema() }},
	{"schema_settings.encoding", func(t *pubsubpb.Topic) string {
		if t.GetSchemaSettings() == nil {
			return ""
		}
		return t.GetSchemaSettings().GetEncoding().String()
	}},
	{"schema_settings.first_revision_id", func(t *pubsubpb.Topic) string { return t.GetSchemaSettings().GetFirstRevisionId() }},
	{"schema_settings.last_revision_id", func(t *pubsubpb.Topic) string { return t.GetSchemaSettings().GetLastRevisionId() }},
}

// TopicDifferences compares an existing topic with the wanted one. It does not compare settings that the configuration does not set.
func TopicDifferences(want, have *pubsubpb.Topic) []Difference {
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
	return fmt.Sprintf("%s to %s", durationOr(p.GetMinimumBackoff(), DefaultRetryMin), durationOr(p.GetMaximumBackoff(), DefaultRetryMax))
}

// IsPush reports whether the subscription is a push subscription.
func IsPush(s *pubsubpb.Subscription) bool { return s.GetPushConfig().GetPushEndpoint() != "" }

// PushText describes how a subscription pushes, for people to read.
func PushText(s *pubsubpb.Subscription) string {
	if !IsPush(s) {
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

// Unchangeable returns the error for differences that need a new subscription. The topic's name differs if the topic was deleted: a new
// topic of its name does not feed the subscription.
func Unchangeable(name string, all []Difference) error {
	var errs []error
	for _, d := range all {
		if !d.Mutable {
			errs = append(errs, fmt.Errorf("subscription %s exists with %s %s, and the configuration says %s: Pub/Sub cannot change it; use another consumer name, or delete the subscription after reading what it holds",
				name, d.Field, d.Have, d.Want))
		}
	}
	return errors.Join(errs...)
}
