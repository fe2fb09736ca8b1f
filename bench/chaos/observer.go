package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	gcp "cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	observed    = 1000 // messages at most in one request
	observeWait = 30 * time.Second
	// observeEvery is how long the observer waits when there was nothing.
	observeEvery = 100 * time.Millisecond
)

// observer reads the orders' topic of Pub/Sub past the network, with nothing of Millrace, one request after another. Google's
// emulator does not keep the order of a key for consumers whose process or stream ends, which here is the rule (see
// docs/guarantees.md), so what the auditor judges there is the order in which relays have published. Kafka keeps it:
// there the order of the effects is judged.
type observer struct {
	client *gcp.Client
	mu     sync.Mutex
	seen   map[string]bool
	last   map[string]int64 // by account
	found  []finding
}

func newObserver(ctx context.Context, address, project string) (o *observer, err error) {
	o = &observer{seen: map[string]bool{}, last: map[string]int64{}}
	o.client, err = gcp.NewClient(ctx, project, option.WithEndpoint(address), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		return nil, err
	}
	if _, err := o.client.TopicAdminClient.CreateTopic(ctx, &pubsubpb.Topic{Name: o.topic()}); err != nil {
		return nil, fmt.Errorf("create topic %s: %w", placed, err)
	}
	if _, err := o.client.SubscriptionAdminClient.CreateSubscription(ctx, &pubsubpb.Subscription{
		Name: o.subscription(), Topic: o.topic(), EnableMessageOrdering: true, AckDeadlineSeconds: 60,
	}); err != nil {
		return nil, fmt.Errorf("observe topic %s: %w", placed, err)
	}
	return o, nil
}

func (o *observer) topic() string {
	return "projects/" + o.client.Project() + "/topics/" + placed
}

func (o *observer) subscription() string {
	return "projects/" + o.client.Project() + "/subscriptions/" + placed + ".observer"
}

// observe reads until ctx ends.
func (o *observer) observe(ctx context.Context) {
	for ctx.Err() == nil {
		if err := o.pull(ctx); err != nil {
			_ = pause(ctx, restartWait) // the loop sees its end
		}
	}
}

func (o *observer) pull(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, observeWait)
	defer cancel()
	got, err := o.client.SubscriptionAdminClient.Pull(ctx, &pubsubpb.PullRequest{
		Subscription: o.subscription(), MaxMessages: observed,
		ReturnImmediately: true, //nolint:staticcheck // the emulator may give messages to a request that waited and was given up
	})
	if err != nil {
		return err
	}
	if len(got.GetReceivedMessages()) == 0 {
		return pause(ctx, observeEvery)
	}
	acks := &pubsubpb.AcknowledgeRequest{Subscription: o.subscription()}
	for _, m := range got.GetReceivedMessages() {
		acks.AckIds = append(acks.AckIds, m.GetAckId())
		var one order
		if err := json.Unmarshal(m.GetMessage().GetData(), &one); err != nil {
			return err
		}
		o.see(one, m.GetMessage().GetPublishTime().AsTime())
	}
	return o.client.SubscriptionAdminClient.Acknowledge(ctx, acks)
}

// see judges the first message about an order.
func (o *observer) see(one order, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen[one.ID] {
		return
	}
	o.seen[one.ID] = true
	if before := o.last[one.Account]; one.Version < before {
		o.found = append(o.found, finding{overtaken, fmt.Sprintf("order %s of %s was published as number %d after number %d", one.ID, one.Account, one.Version, before), at})
		return
	}
	o.last[one.Account] = one.Version
}

// judged is how many orders it has seen.
func (o *observer) judged() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.seen)
}

func (o *observer) findings() []finding {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.found[:len(o.found):len(o.found)]
}
