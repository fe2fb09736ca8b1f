package resource

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/transport"
)

// Pub/Sub keeps the subscriptions of a deleted topic, but a new topic of the same name does not feed them: a message published to it is
// acknowledged and reaches no subscriber (https://cloud.google.com/pubsub/docs/reference/rest/v1/projects.topics/delete). So a publisher
// does not recreate a topic, and checks from time to time whether the topic is still the same. Topics have no ID, so the check compares
// their subscriptions.

// DeletedTopic is what Pub/Sub reports as the topic of a subscription whose topic was deleted.
const DeletedTopic = "_deleted-topic_"

// lookAgain is how long a result "deleted" is cached, however often messages are published to the topic.
const lookAgain = time.Second

// publishedTopic is a topic that this process publishes to.
type publishedTopic struct {
	mu        sync.Mutex
	feeds     map[string]bool // the subscriptions, by full name, at the last successful check; the map is not changed
	well      time.Time       // the time of that check
	deleted   error           // why nothing is published; nil if the topic is well
	looked    time.Time       // when a check last found it deleted
	deletions int             // how often it was found deleted; results of checks that began before the last time are ignored
}

// MayPublish reports whether EnsurePublishing has nothing to do.
func (r *Registry) MayPublish(topic string) bool {
	_, ok := r.known.Load(r.topicName(topic) + memoPublish)
	return ok
}

// EnsurePublishing makes sure that the topic exists and still feeds the subscriptions that this process knows it to feed. It creates the
// topic only before this process first publishes to it.
func (r *Registry) EnsurePublishing(ctx context.Context, topic string) error {
	return r.share(ctx, r.topicName(topic)+memoPublish, func(ctx context.Context) error {
		if r.MayPublish(topic) {
			return nil // by a flight that has ended since
		}
		if r.publishes(topic).first() {
			if err := r.ensureTopic(ctx, topic); err != nil {
				return err
			}
		}
		return r.look(ctx, topic)
	})
}

// TopicMissing is called when the service reports that a topic does not exist although it was published to.
func (r *Registry) TopicMissing(topic string) {
	_ = r.stopPublishing(topic, errMissing(topic), time.Time{})
}

func (r *Registry) publishes(topic string) *publishedTopic {
	p, _ := r.published.LoadOrStore(topic, &publishedTopic{})
	return p.(*publishedTopic)
}

// first reports whether nothing was published to the topic yet.
func (p *publishedTopic) first() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.feeds == nil && p.deleted == nil
}

// look compares the subscriptions that the topic feeds with the known ones. It allows publishing or stops it.
func (r *Registry) look(ctx context.Context, topic string) error {
	p := r.publishes(topic)
	p.mu.Lock()
	known, deleted, looked, deletions := p.feeds, p.deleted, p.looked, p.deletions
	p.mu.Unlock()
	if deleted != nil && time.Since(looked) < lookAgain {
		return deleted
	}
	feeds, err := r.feeds(ctx, topic, deleted != nil)
	switch {
	case status.Code(err) == codes.PermissionDenied:
		feeds = known // publishing will show whether the topic is missing
	case status.Code(err) == codes.NotFound:
		if known == nil && deleted == nil {
			r.forgetTopic(topic)
			return fmt.Errorf("%w: topic %s is missing, and this account may not create it: create it (gcloud pubsub topics create %s --project=%s)", transport.ErrUnavailable, topic, topic, r.config.Project)
		}
		return r.stopPublishing(topic, errMissing(topic), time.Now())
	case err != nil:
		return fmt.Errorf("list the subscriptions of topic %s: %w", topic, err)
	default:
		lost, err := r.lost(ctx, topic, known, feeds, deleted != nil)
		if err != nil {
			return err
		}
		if len(lost) > 0 {
			return r.stopPublishing(topic, errAnew(topic, lost), time.Now())
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.deletions != deletions {
		return p.deleted
	}
	if p.deleted != nil {
		if err == nil {
			r.log.Info("a deleted topic is published to again", slog.String("topic", topic))
		}
		r.CountDeleted(topic, "", -1)
	}
	p.feeds, p.well, p.deleted = feeds, time.Now(), nil
	r.known.Store(r.topicName(topic)+memoPublish, struct{}{})
	return nil
}

// feeds returns the subscriptions that the topic feeds. For a missing topic the emulator (0.8.20) returns none. So if doubt is set, the
// topic itself is looked up first.
func (r *Registry) feeds(ctx context.Context, topic string, doubt bool) (map[string]bool, error) {
	if doubt {
		if _, err := r.client.TopicAdminClient.GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: r.topicName(topic)}); err != nil {
			return nil, err
		}
	}
	all := map[string]bool{}
	for s, err := range r.client.TopicAdminClient.ListTopicSubscriptions(ctx, &pubsubpb.ListTopicSubscriptionsRequest{Topic: r.topicName(topic)}).All() {
		if err != nil {
			return nil, err
		}
		all[s] = true
	}
	return all, nil
}

// lost returns the IDs of the known subscriptions that the topic does not feed because it was recreated. If deleted is false, it assumes
// that a missing subscription was deleted on purpose. It adds to feeds the subscriptions that the list does not show yet.
func (r *Registry) lost(ctx context.Context, topic string, known, feeds map[string]bool, deleted bool) (ids []string, err error) {
	for _, s := range slices.Sorted(maps.Keys(known)) {
		if feeds[s] {
			continue
		}
		have, err := r.client.SubscriptionAdminClient.GetSubscription(ctx, &pubsubpb.GetSubscriptionRequest{Subscription: s})
		code := status.Code(err)
		switch {
		case err != nil && code != codes.NotFound && code != codes.PermissionDenied:
			return nil, fmt.Errorf("look up subscription %s: %w", s, err)
		case err == nil && have.Topic == r.topicName(topic) && !have.Detached:
			feeds[s] = true
		case deleted, err == nil && have.Topic == DeletedTopic:
			ids = append(ids, path.Base(s))
		case code == codes.PermissionDenied:
			r.log.Warn("a topic no longer feeds a subscription, and this account may not look why: if the topic was created anew, what is published does not reach the subscription",
				slog.String("topic", topic), slog.String("subscription", s))
		}
	}
	return ids, nil
}

// stopPublishing stops publishing to the topic and returns the reason.
func (r *Registry) stopPublishing(topic string, why error, looked time.Time) error {
	p := r.publishes(topic)
	p.mu.Lock()
	defer p.mu.Unlock()
	r.forgetTopic(topic)
	r.known.Delete(r.topicName(topic) + memoPublish)
	if p.deleted == nil {
		r.log.Error("a topic was deleted while this process published to it: nothing more is published to it until it feeds its subscriptions again",
			slog.String("topic", topic), slog.Any("error", why), slog.Time("last_well", p.well))
		r.CountDeleted(topic, "", 1)
	}
	p.deleted, p.looked = why, looked
	p.deletions++
	return why
}

func errMissing(topic string) error {
	return fmt.Errorf("%w: topic %s was deleted, and is not created again while this process publishes to it, because its subscriptions would get nothing: create it with its subscriptions, or restart this process",
		transport.ErrUnavailable, topic)
}

func errAnew(topic string, lost []string) error {
	return fmt.Errorf("%w: topic %s was deleted and created anew: what is published would not reach %s; "+
		"delete each of these that exists, after reading what it holds (gcloud pubsub subscriptions delete), so that its consumer creates it again, or restart this process to publish without them",
		transport.ErrUnavailable, topic, strings.Join(lost, ", "))
}

// watch checks the topics that are published to until ctx ends. It ignores errors, because publishing reports them, too.
func (r *Registry) watch(ctx context.Context) {
	ticker := time.NewTicker(r.config.Recheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for topic := range r.published.Range {
			ctx, cancel := context.WithTimeout(ctx, createTimeout)
			_ = r.look(ctx, topic.(string))
			cancel()
		}
	}
}

// orphans returns the subscriptions of our consumers whose topic of this name was deleted.
func (r *Registry) orphans(ctx context.Context, name string) (all []string, err error) {
	for s, err := range r.client.SubscriptionAdminClient.ListSubscriptions(ctx, &pubsubpb.ListSubscriptionsRequest{Project: "projects/" + string(r.config.Project), PageSize: 1000}).All() {
		switch {
		case status.Code(err) == codes.PermissionDenied:
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("list the subscriptions of project %s: %w", r.config.Project, err)
		}
		consumer, ours := strings.CutPrefix(path.Base(s.Name), path.Base(name)+".")
		if ours && s.Topic == DeletedTopic && transport.ValidateConsumer(consumer) == nil {
			all = append(all, path.Base(s.Name))
		}
	}
	return all, nil
}
