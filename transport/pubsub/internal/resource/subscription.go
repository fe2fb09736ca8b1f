package resource

import (
	"context"
	"fmt"
	"log/slog"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/transport/pubsub/internal/setting"
)

// LookUp returns the subscription as it exists.
func (r *Registry) LookUp(ctx context.Context, topic, consumer string) (*pubsubpb.Subscription, error) {
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	return r.client.SubscriptionAdminClient.GetSubscription(ctx, &pubsubpb.GetSubscriptionRequest{Subscription: r.config.Project.Subscription(topic, consumer)})
}

// settle creates the subscription if it is missing. Otherwise it compares it with what is wanted and, if Update is set, changes it.
func (r *Registry) settle(ctx context.Context, want *pubsubpb.Subscription) error {
	get := &pubsubpb.GetSubscriptionRequest{Subscription: want.Name}
	have, err := r.client.SubscriptionAdminClient.GetSubscription(ctx, get)
	if status.Code(err) == codes.NotFound {
		if !r.config.Create {
			return fmt.Errorf("subscription %s of topic %s is missing: create it (gcloud pubsub subscriptions create, or Terraform's google_pubsub_subscription), or let Config.Resources be CreateMissing: %w",
				want.Name, want.Topic, err)
		}
		_, err = r.client.SubscriptionAdminClient.CreateSubscription(ctx, want)
		if err == nil {
			return nil
		}
		if status.Code(err) == codes.PermissionDenied { // a push consumer would get neither messages nor errors
			return fmt.Errorf("create subscription %s, which is missing: grant this account roles/pubsub.editor in IAM, or create it (gcloud pubsub subscriptions create): %w", want.Name, err)
		}
	}
	if status.Code(err) == codes.AlreadyExists { // another process was faster
		have, err = r.client.SubscriptionAdminClient.GetSubscription(ctx, get)
	}
	if err != nil {
		if exists(err) {
			return nil
		}
		return fmt.Errorf("create subscription %s: %w", want.Name, err)
	}
	r.warnOfTransforms("subscription", want.Name, have.GetMessageTransforms())
	all := setting.Differences(want, have)
	if err := setting.Unchangeable(want.Name, all); err != nil || len(all) == 0 {
		return err
	}
	if r.config.Update {
		err := r.update(ctx, want, have, all)
		if status.Code(err) != codes.PermissionDenied {
			return err
		}
		r.log.Warn("this account may not change a subscription", slog.String("subscription", want.Name), slog.Any("error", err))
	}
	if setting.IsPush(have) != setting.IsPush(want) {
		return fmt.Errorf("subscription %s exists with push_config %s, and the configuration says %s: the consumer would wait for messages that go the other way; let Config.Resources be Update, or change the configuration or the subscription",
			want.Name, setting.PushText(have), setting.PushText(want))
	}
	for _, d := range all {
		r.log.Warn("a subscription is not as configured", slog.String("subscription", want.Name), slog.String("setting", d.Field),
			slog.String("have", d.Have), slog.String("want", d.Want),
			slog.String("remedy", "let Config.Resources be Update, or change the configuration or the subscription"))
	}
	return nil
}

func (r *Registry) update(ctx context.Context, want, have *pubsubpb.Subscription, all []setting.Difference) error {
	mask := setting.MaskOf(all)
	want.Labels = setting.Merged(have.GetLabels(), want.GetLabels())
	_, err := r.client.SubscriptionAdminClient.UpdateSubscription(ctx, &pubsubpb.UpdateSubscriptionRequest{Subscription: want, UpdateMask: mask})
	if err != nil {
		return fmt.Errorf("update %v of subscription %s: %w", mask.Paths, want.Name, err)
	}
	r.log.Info("changed a subscription to what is configured", slog.String("subscription", want.Name), slog.Any("settings", mask.Paths))
	return nil
}
