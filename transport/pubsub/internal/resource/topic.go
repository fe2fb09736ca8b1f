package resource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"strings"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/setting"
)

// createTopic creates the topic if it is missing. Otherwise it compares it with the configuration and, if Update is set, changes it.
func (r *Registry) createTopic(ctx context.Context, name string) error {
	schema := r.config.Schemas[path.Base(name)].Wanted(r.config.Project)
	want := r.config.Topic.Wanted(name, schema)
	have, err := r.client.TopicAdminClient.GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: name})
	if status.Code(err) == codes.NotFound {
		if !r.config.Create {
			return fmt.Errorf("topic %s is missing: create it (gcloud pubsub topics create %s --project=%s, or Terraform's google_pubsub_topic), or let Config.Resources be CreateMissing: %w",
				name, path.Base(name), r.config.Project, err)
		}
		orphans, failed := r.orphans(ctx, name)
		if failed != nil {
			return failed
		}
		if len(orphans) > 0 {
			return fmt.Errorf("%w: topic %s was deleted, and a new one would not feed its subscriptions %s, whose topic is %s: delete them after reading what they hold (gcloud pubsub subscriptions delete), or create the topic without them (gcloud pubsub topics create %s --project=%s)",
				transport.ErrUnavailable, path.Base(name), strings.Join(orphans, ", "), DeletedTopic, path.Base(name), r.config.Project)
		}
		_, err = r.client.TopicAdminClient.CreateTopic(ctx, want)
		if schema != nil && status.Code(err) == codes.NotFound {
			return fmt.Errorf("create topic %s: its schema %s is missing: create it (gcloud pubsub schemas create), or correct Config.Schemas: %w", name, schema.Schema, err)
		}
	} else if err == nil {
		r.settleTopic(ctx, want, have)
	}
	if err != nil && !exists(err) {
		return fmt.Errorf("create topic %s: %w", name, err)
	}
	return nil
}

// settleTopic changes a topic if Update is set; otherwise it logs the differences. It returns no error, because the topic works either
// way.
func (r *Registry) settleTopic(ctx context.Context, want, have *pubsubpb.Topic) {
	r.warnOfTransforms("topic", want.Name, have.GetMessageTransforms())
	all := setting.TopicDifferences(want, have)
	if len(all) == 0 {
		return
	}
	if r.config.Update {
		want.Labels = setting.Merged(have.GetLabels(), want.GetLabels())
		mask := setting.MaskOf(all)
		_, err := r.client.TopicAdminClient.UpdateTopic(ctx, &pubsubpb.UpdateTopicRequest{Topic: want, UpdateMask: mask})
		if err != nil {
			r.log.Warn("a topic could not be changed to what is configured", slog.String("topic", path.Base(want.Name)), slog.Any("settings", mask.Paths), slog.Any("error", err))
			return
		}
		r.log.Info("changed a topic to what is configured", slog.String("topic", path.Base(want.Name)), slog.Any("settings", mask.Paths))
		return
	}
	for _, d := range all {
		r.log.Warn("a topic is not as configured", slog.String("topic", path.Base(want.Name)), slog.String("setting", d.Field),
			slog.String("have", d.Have), slog.String("want", d.Want), slog.String("remedy", "let Config.Resources be Update, or change the configuration or the topic"))
	}
}

// SchemaOf returns the full name of the topic's schema, or "". If this account may not look, it returns the configured one.
func (r *Registry) SchemaOf(ctx context.Context, topic string) string {
	have, err := r.client.TopicAdminClient.GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: r.topicName(topic)})
	if err != nil {
		return r.config.Schemas[topic].Wanted(r.config.Project).GetSchema()
	}
	return have.GetSchemaSettings().GetSchema()
}

// warnOfTransforms logs each enabled message transform of the topic or the subscription.
func (r *Registry) warnOfTransforms(kind, name string, all []*pubsubpb.MessageTransform) {
	for _, transform := range setting.Transforms(all) {
		r.log.Warn("a message transform can drop events, or their IDs", slog.String(kind, path.Base(name)), slog.String("transform", transform), slog.String("remedy", setting.TransformRemedy))
	}
}

// keepDeadLetters creates a subscription for a dead-letter topic that has none, because Pub/Sub drops messages of a topic without
// subscriptions.
func (r *Registry) keepDeadLetters(ctx context.Context, topic string) error {
	read, err := r.HasSubscription(ctx, topic)
	if err != nil || read {
		return err
	}
	if !r.config.Create {
		r.log.Warn("a dead-letter topic has no subscription: what arrives there is lost", slog.String("dead_letter_topic", topic),
			slog.String("remedy", fmt.Sprintf("gcloud pubsub subscriptions create %s.%s --topic=%s --project=%s", topic, transport.DeadLetterConsumer, topic, r.config.Project)))
		return nil
	}
	want := setting.Subscription{AckDeadline: setting.DefaultAckDeadline}.Wanted(r.config.Project, topic, transport.DeadLetterConsumer)
	_, err = r.client.SubscriptionAdminClient.CreateSubscription(ctx, want)
	switch {
	case status.Code(err) == codes.AlreadyExists: // another process was faster, or the name is taken
		if read, err := r.HasSubscription(ctx, topic); err != nil || read {
			return err
		}
		return fmt.Errorf("topic %s has no subscription, and %s belongs to another, perhaps deleted one: delete that after reading what it holds, or subscribe to the topic", topic, want.Name)
	case status.Code(err) == codes.PermissionDenied:
		r.log.Warn("a dead-letter topic has no subscription, and this account may not create one: what arrives there is lost", slog.String("dead_letter_topic", topic))
	case err == nil:
		r.log.Info("created a subscription for a dead-letter topic that had none", slog.String("subscription", want.Name))
	default:
		return fmt.Errorf("create subscription %s: %w", want.Name, err)
	}
	return nil
}

// HasSubscription reports whether the topic has a subscription. It returns true if this account may not find out.
func (r *Registry) HasSubscription(ctx context.Context, topic string) (bool, error) {
	_, err := r.client.TopicAdminClient.ListTopicSubscriptions(ctx, &pubsubpb.ListTopicSubscriptionsRequest{Topic: r.topicName(topic), PageSize: 1}).Next()
	switch {
	case err == nil || exists(err):
		return true, nil
	case errors.Is(err, iterator.Done):
		return false, nil
	}
	return false, fmt.Errorf("list the subscriptions of topic %s: %w", topic, err)
}
