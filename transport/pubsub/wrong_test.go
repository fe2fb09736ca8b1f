package pubsub_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/wrongtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

func publishes(ctx context.Context, tr *pubsub.Transport, topic string) error {
	p, err := tr.Publisher()
	if err != nil {
		return err
	}
	return errors.Join(p.(transport.BatchPublisher).PublishBatch(ctx, topic, []*message.Message{newMessage("k", "v")})...)
}

func subscribesAs(config transport.SubscriberConfig) func(context.Context, *pubsub.Transport, string) error {
	return func(ctx context.Context, tr *pubsub.Transport, topic string) error {
		config.Consumer = "labour"
		s, err := tr.Subscriber(config)
		if err != nil {
			return err
		}
		_, err = s.Subscribe(ctx, topic)
		return err
	}
}

// TestWrongSettings: each of them is an error within 5 s that names the setting, or the right, and the remedy.
func TestWrongSettings(t *testing.T) {
	emulated := emulator(t)
	t.Setenv("PUBSUB_EMULATOR_HOST", "") // it would hide the credentials
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, silent.Close()) })
	dir := t.TempDir()
	credentials := func(name, content string) pubsub.Config {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return pubsub.Config{CredentialsFile: path}
	}
	deny := func(methods ...string) []option.ClientOption {
		_, options := fake(t)
		for _, m := range methods {
			options = append(options, calls(m, func(any) error {
				return status.Error(codes.PermissionDenied, "User not authorized to perform this action.")
			}))
		}
		return options
	}
	subscribes := subscribesAs(transport.SubscriberConfig{})
	ping := func(ctx context.Context, tr *pubsub.Transport, _ string) error {
		soon, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return tr.Ping(soon)
	}
	exists := func(change func(*pubsubpb.Subscription)) *pubsubpb.Subscription {
		s := &pubsubpb.Subscription{AckDeadlineSeconds: 20, ExpirationPolicy: &pubsubpb.ExpirationPolicy{}}
		change(s)
		return s
	}
	const missing, fine = "missing", "fine"
	for name, c := range map[string]struct {
		config pubsub.Config
		topic  string
		exists *pubsubpb.Subscription // the consumer's, in the emulator
		use    func(ctx context.Context, tr *pubsub.Transport, topic string) error
	}{
		"endpoint_where_nothing_listens": {pubsub.Config{ClientOptions: plain(closed.Addr().String())}, "", nil, ping},
		"endpoint_that_keeps_silent":     {pubsub.Config{ClientOptions: plain(silent.Addr().String())}, "", nil, ping},
		"endpoint_that_is_a_url":         {pubsub.Config{Endpoint: "https://pubsub.googleapis.com"}, "", nil, nil},
		"credentials_that_are_missing":   {pubsub.Config{CredentialsFile: filepath.Join(dir, "nowhere.json")}, "", nil, nil},
		"credentials_that_are_no_json":   {credentials("no.json", "token: hunter2"), "", nil, nil},
		"credentials_of_another_type":    {credentials("other.json", `{"type": "gdch_service_account", "private_key": "hunter2"}`), "", nil, nil},
		"credentials_with_a_broken_key":  {credentials("broken.json", `{"type": "service_account", "client_email": "a@b.iam", "private_key": "hunter2", "token_uri": "https://oauth2.googleapis.com/token"}`), "", nil, ping},

		"publish_to_a_missing_topic":   {pubsub.Config{Resources: pubsub.CheckOnly}, missing, nil, publishes},
		"subscribe_to_a_missing_topic": {pubsub.Config{Resources: pubsub.CheckOnly}, missing, nil, subscribes},
		"missing_subscription":         {pubsub.Config{Resources: pubsub.CheckOnly}, fine, nil, subscribes},
		"dead_letters_of_its_own_topic": {
			pubsub.Config{Subscription: pubsub.SubscriptionConfig{DeadLetter: pubsub.DeadLetter{Topic: "labours"}}}, "labours", nil, subscribes,
		},
		"subscription_of_another_topic": {pubsub.Config{}, fine, exists(func(s *pubsubpb.Subscription) { s.Topic = "other" }), subscribes},
		"subscription_with_another_filter": {
			pubsub.Config{Subscription: pubsub.SubscriptionConfig{Filter: `attributes.kind = "a"`}},
			fine,
			exists(func(s *pubsubpb.Subscription) { s.Filter = `attributes.kind = "b"` }), subscribes,
		},
		"subscription_without_order": {
			pubsub.Config{}, fine, exists(func(*pubsubpb.Subscription) {}), subscribesAs(transport.SubscriberConfig{Ordered: true}),
		},
		"push_subscription_for_pull": {
			pubsub.Config{}, fine, exists(func(s *pubsubpb.Subscription) {
				s.PushConfig = &pubsubpb.PushConfig{PushEndpoint: "http://127.0.0.1:1/push"}
			}), subscribes,
		},
		"pull_subscription_for_push": {
			pubsub.Config{Subscription: pubsub.SubscriptionConfig{Push: &pubsub.Push{Endpoint: "http://127.0.0.1:1/push", AllowUnauthenticated: true}}},
			fine,
			exists(func(*pubsubpb.Subscription) {}), subscribes,
		},
		"push_without_https": {
			pubsub.Config{Subscription: pubsub.SubscriptionConfig{Push: &pubsub.Push{Endpoint: "http://host/push", ServiceAccount: "a@b.iam"}}}, "", nil, nil,
		},
		"push_without_an_account": {pubsub.Config{Subscription: pubsub.SubscriptionConfig{Push: &pubsub.Push{Endpoint: "https://host/push"}}}, "", nil, nil},

		"no_right_to_publish":               {pubsub.Config{ClientOptions: deny("Publish")}, fine, nil, publishes},
		"no_right_to_create_a_subscription": {pubsub.Config{ClientOptions: deny("CreateSubscription")}, fine, nil, subscribes},
		"no_right_to_update_a_subscription": {
			pubsub.Config{
				Resources: pubsub.Update, Subscription: pubsub.SubscriptionConfig{Push: &pubsub.Push{Endpoint: "http://127.0.0.1:1/push", AllowUnauthenticated: true}},
				ClientOptions: append(slices.Clone(emulated), deny("UpdateSubscription")[3:]...),
			}, fine, exists(func(*pubsubpb.Subscription) {}), subscribes,
		},
	} {
		t.Run(name, func(t *testing.T) {
			topic := c.topic
			if c.config.ClientOptions == nil && (c.topic != "" || c.exists != nil) {
				c.config.ClientOptions = emulated
			}
			switch topic {
			case fine:
				topic = devtest.Topic(t)
				client := rawClient(t, c.config.ClientOptions)
				for _, of := range []string{topic, topic + ".other"} {
					_, err := client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: topicName(of)})
					require.NoError(t, err)
				}
				if s := c.exists; s != nil {
					s.Name = subscriptionName(topic, "labour")
					if s.Topic = topicName(topic); name == "subscription_of_another_topic" {
						s.Topic += ".other"
					}
					_, err := client.SubscriptionAdminClient.CreateSubscription(t.Context(), s)
					require.NoError(t, err)
				}
			case missing:
				topic = devtest.Topic(t)
			}
			c.config.ProjectID = project
			wrongtest.Refused(t, func() error {
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				defer cancel()
				tr, err := pubsub.New(ctx, c.config)
				if err != nil || c.use == nil {
					return err
				}
				defer func() { require.NoError(t, tr.Close()) }()
				return c.use(ctx, tr, topic)
			}, topic, "TOPIC", dir, "DIR")
		})
	}
}
