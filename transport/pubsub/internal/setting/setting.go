// Package setting converts configured topics and subscriptions to those of Pub/Sub, and compares them with existing ones. It does no I/O.
package setting

import (
	"path"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// DefaultAckDeadline is the ack deadline of a subscription whose configuration sets none.
const DefaultAckDeadline = 20 * time.Second

// The waits that Pub/Sub uses if a retry policy sets no first or no longest wait.
const (
	DefaultRetryMin = 10 * time.Second
	DefaultRetryMax = 600 * time.Second
)

// Topic is a topic, as pubsub.TopicConfig describes it.
type Topic struct {
	Labels         map[string]string
	Retention      time.Duration
	StorageRegions []string
	KMSKey         string
}

// Schema is the schema of a topic, as pubsub.SchemaConfig describes it. The zero value is none.
type Schema struct {
	Name                        string
	Binary                      bool
	FirstRevision, LastRevision string
}

// Wanted returns the schema of a topic in the project, for Pub/Sub's API.
func (s Schema) Wanted(p wire.Project) *pubsubpb.SchemaSettings {
	if s.Name == "" {
		return nil
	}
	want := &pubsubpb.SchemaSettings{Schema: p.Schema(s.Name), Encoding: pubsubpb.Encoding_JSON, FirstRevisionId: s.FirstRevision, LastRevisionId: s.LastRevision}
	if s.Binary {
		want.Encoding = pubsubpb.Encoding_BINARY
	}
	return want
}

// Wanted returns the topic, with that full name, for Pub/Sub's API.
func (t Topic) Wanted(name string, schema *pubsubpb.SchemaSettings) *pubsubpb.Topic {
	want := &pubsubpb.Topic{Name: name, Labels: t.Labels, KmsKeyName: t.KMSKey, SchemaSettings: schema}
	if t.Retention > 0 {
		want.MessageRetentionDuration = durationpb.New(t.Retention)
	}
	if len(t.StorageRegions) > 0 {
		want.MessageStoragePolicy = &pubsubpb.MessageStoragePolicy{AllowedPersistenceRegions: t.StorageRegions}
	}
	return want
}

// Subscription is a subscription, as pubsub.SubscriptionConfig describes it.
type Subscription struct {
	AckDeadline        time.Duration
	Ordered            bool
	ExactlyOnce        bool
	Filter             string
	Labels             map[string]string
	DeadLetters        string // the dead-letter topic, or ""
	MaxAttempts        int
	RetryMin, RetryMax time.Duration // both 0: no retry policy
	Push               *Push         // nil: the service pulls
}

// Wanted returns the consumer's subscription to the topic for Pub/Sub's API.
func (s Subscription) Wanted(p wire.Project, topic, consumer string) *pubsubpb.Subscription {
	name := p.Subscription(topic, consumer)
	want := &pubsubpb.Subscription{
		Name:                      name,
		Topic:                     p.Topic(topic),
		AckDeadlineSeconds:        int32(s.AckDeadline / time.Second),
		EnableMessageOrdering:     s.Ordered,
		EnableExactlyOnceDelivery: s.ExactlyOnce,
		Filter:                    s.Filter,
		Labels:                    s.Labels,
		PushConfig:                s.Push.config(path.Base(name)),
		// Without this policy, Pub/Sub deletes a subscription and its messages after 31 days without a subscriber.
		ExpirationPolicy: &pubsubpb.ExpirationPolicy{},
	}
	if s.DeadLetters != "" {
		want.DeadLetterPolicy = &pubsubpb.DeadLetterPolicy{DeadLetterTopic: p.Topic(s.DeadLetters), MaxDeliveryAttempts: int32(s.MaxAttempts)}
	}
	if s.RetryMin != 0 || s.RetryMax != 0 {
		want.RetryPolicy = &pubsubpb.RetryPolicy{MinimumBackoff: durationpb.New(s.RetryMin), MaximumBackoff: durationpb.New(s.RetryMax)}
	}
	return want
}
