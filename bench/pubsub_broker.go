package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	gcp "cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace-go/millrace/bench/internal/wait"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/transport/pubsub"
)

const (
	// consumerName names the one subscription, as transport/pubsub does: "<topic>.<consumer>".
	consumerName = "bench"
	subscription = topic + "." + consumerName
	// idAttribute carries an event's ID for watermill-googlecloud and for Millrace; the bare client is given it too.
	idAttribute = "_watermill_message_uuid"
	// cleanupTimeout bounds what is removed from a shared emulator, which also happens after Ctrl-C.
	cleanupTimeout = 10 * time.Second
)

// broker is a server of Pub/Sub's protocol.
type broker struct {
	name string // ends the names of its figures; "": pstest
	open func(ctx context.Context) (*room, error)
}

func (b broker) suffix(separator string) string {
	if b.name == "" {
		return ""
	}
	return separator + b.name
}

// brokers calls fn with pstest (see swift) and, where it is installed or named by the environment, Google's emulator; fact tells which.
func brokers(ctx context.Context, fn func(all []broker, fact string) error) (err error) {
	var stack devstack.Stack
	defer func() { err = errors.Join(err, stack.Stop()) }()
	if err := stack.Add(ctx, devstack.PubSub); err != nil {
		return err
	}
	all := []broker{{"", openFake}}
	emulator := stack.Services()[0]
	if !emulator.Real {
		return fn(all, "pstest in this process, its subscriptions replaced by queues; Google's emulator is not installed, so there are no figures for it")
	}
	all = append(all, broker{"emulator", func(ctx context.Context) (*room, error) { return openEmulator(ctx, stack.PubSubHost()) }})
	return fn(all, "pstest in this process, its subscriptions replaced by queues; emulator: "+emulator.Source)
}

// room is a project of a broker with the topic and nothing else in it.
type room struct {
	project string
	options []option.ClientOption
	admin   *gcp.Client // for what is not measured
	// unsettled tells, after the consumer was closed, how many messages were not acked, or not delivered just once.
	unsettled func(ctx context.Context) (int, error)
	closers   []func() error
}

func openFake(ctx context.Context) (*room, error) {
	s, err := startSwift()
	if err != nil {
		return nil, err
	}
	r, err := newRoom(ctx, s.address)
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	r.unsettled = func(context.Context) (n int, _ error) { return s.unsettled(), nil }
	r.closers = append(r.closers, s.stop)
	return r, nil
}

func openEmulator(ctx context.Context, address string) (*room, error) {
	r, err := newRoom(ctx, address)
	if err != nil {
		return nil, err
	}
	// What is leased does not show here: a closed consumer holds no leases.
	r.unsettled = func(ctx context.Context) (int, error) {
		ids, err := r.pull(ctx, 0)
		return len(ids), err
	}
	return r, nil
}

func newRoom(ctx context.Context, address string) (r *room, err error) {
	r = &room{project: "bench-" + strings.ToLower(rand.Text()[:12]), options: []option.ClientOption{
		option.WithEndpoint(address),
		option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
	}}
	if r.admin, err = r.client(ctx); err != nil {
		return nil, err
	}
	r.closers = append(r.closers, r.remove, r.admin.Close)
	if _, err := r.admin.TopicAdminClient.CreateTopic(ctx, &pubsubpb.Topic{Name: r.topicName()}); err != nil {
		return nil, errors.Join(fmt.Errorf("create the topic: %w", err), r.admin.Close())
	}
	return r, nil
}

func (r *room) topicName() string { return "projects/" + r.project + "/topics/" + topic }
func (r *room) subscriptionName() string {
	return "projects/" + r.project + "/subscriptions/" + subscription
}

// client is Google's client with its defaults.
func (r *room) client(ctx context.Context) (*gcp.Client, error) {
	return gcp.NewClient(ctx, r.project, r.options...)
}

// config is that of Millrace's transport, with its defaults.
func (r *room) config() pubsub.Config {
	return pubsub.Config{ProjectID: r.project, ClientOptions: r.options}
}

// subscribe creates the subscription, so that nothing that is published is lost.
func (r *room) subscribe(ctx context.Context, ordered bool) error {
	_, err := r.admin.SubscriptionAdminClient.CreateSubscription(ctx, &pubsubpb.Subscription{
		Name: r.subscriptionName(), Topic: r.topicName(), EnableMessageOrdering: ordered,
		AckDeadlineSeconds: int32(pubsub.SubscriptionConfig{}.WithDefaults().AckDeadline.Seconds()),
	})
	if err != nil {
		return fmt.Errorf("create the subscription: %w", err)
	}
	return nil
}

// pull takes and acks messages until there are that many or no more, and returns their events' IDs.
func (r *room) pull(ctx context.Context, want int) ([]string, error) {
	ids := make([]string, 0, want)
	for empty := 0; len(ids) < want || empty == 0; {
		got, err := r.admin.SubscriptionAdminClient.Pull(ctx, &pubsubpb.PullRequest{
			Subscription: r.subscriptionName(), MaxMessages: batchSize,
			ReturnImmediately: true, //nolint:staticcheck // deprecated for a service that may have messages and answer that it has none
		})
		if err != nil {
			return nil, fmt.Errorf("pull: %w", err)
		}
		acks := &pubsubpb.AcknowledgeRequest{Subscription: r.subscriptionName()}
		for _, m := range got.ReceivedMessages {
			ids = append(ids, m.Message.Attributes[idAttribute])
			acks.AckIds = append(acks.AckIds, m.AckId)
		}
		if len(acks.AckIds) == 0 {
			if empty++; empty > 100 || !wait.For(ctx, time.Millisecond) {
				break
			}
			continue
		}
		if err := r.admin.SubscriptionAdminClient.Acknowledge(ctx, acks); err != nil {
			return nil, fmt.Errorf("acknowledge: %w", err)
		}
	}
	return ids, ctx.Err()
}

// remove empties the project, which an emulator that the environment names would keep for good.
func (r *room) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	// It may never have been created, and an emulator that is going away keeps nothing.
	_ = r.admin.SubscriptionAdminClient.DeleteSubscription(ctx, &pubsubpb.DeleteSubscriptionRequest{Subscription: r.subscriptionName()})
	_ = r.admin.TopicAdminClient.DeleteTopic(ctx, &pubsubpb.DeleteTopicRequest{Topic: r.topicName()})
	return nil
}

func (r *room) close() (err error) {
	for _, done := range r.closers {
		err = errors.Join(err, done())
	}
	return err
}
