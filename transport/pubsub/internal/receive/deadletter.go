package receive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"strconv"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// What Pub/Sub adds to the attributes of a message that it forwards to a dead-letter topic
// (https://cloud.google.com/pubsub/docs/handling-failures). They arrive as metadata.
const (
	DeadDeliveriesMetadata   = "CloudPubSubDeadLetterSourceDeliveryCount"
	DeadSubscriptionMetadata = "CloudPubSubDeadLetterSourceSubscription"
	DeadProjectMetadata      = "CloudPubSubDeadLetterSourceSubscriptionProject"
	DeadPublishTimeMetadata  = "CloudPubSubDeadLetterSourceTopicPublishTime"
)

// deadLetterTimeout bounds the publish to the dead-letter topic.
const deadLetterTimeout = 30 * time.Second

// attempts counts also where Pub/Sub does not, because the subscription that exists is without the policy.
func attempts(m *pubsub.Message, retries int) int {
	first := 1
	if m.DeliveryAttempt != nil {
		first = *m.DeliveryAttempt
	}
	return first + retries
}

// DeadLetter publishes the message to the dead-letter topic: one that was rejected for the cause, or, without one, an ordered
// message that failed too often. That is retried in place, so Pub/Sub does not see its attempts, and would never send it
// there. It returns false when the message could not be published.
func (s *Subscription) DeadLetter(ctx context.Context, m *pubsub.Message, retries int, cause error) bool {
	ctx, cancel := context.WithTimeout(ctx, deadLetterTimeout)
	defer cancel()
	topic := s.config.DeadLetters
	if topic == "" {
		topic = transport.DeadLetterTopic(s.config.Topic, s.config.Consumer)
	}
	dead := wire.Unmarshal(m)
	if own := dead.UUID; wire.Identify(s.config.EventID, dead, wire.PlaceOf(s.config.Topic, m)) != nil {
		dead.UUID = own
	}
	dead.Metadata[DeadDeliveriesMetadata] = strconv.Itoa(attempts(m, retries))
	dead.Metadata[DeadSubscriptionMetadata] = path.Base(s.config.Name)
	dead.Metadata[DeadProjectMetadata] = string(s.config.Project)
	dead.Metadata[DeadPublishTimeMetadata] = m.PublishTime.UTC().Format("2006-01-02T15:04:05.999Z07:00")
	why := "failed too often"
	if cause != nil {
		why = "was rejected"
		transport.MarkRejected(dead, cause)
	}
	publisher := s.shared.Publisher
	err := s.publishDead(ctx, topic, func() error {
		return errors.Join(publisher.PublishBatch(ctx, topic, []*message.Message{dead})...)
	})
	if errors.Is(err, transport.ErrLimit) { // no room for the reasons, or a producer that heeds other limits than ours
		err = s.publishDead(ctx, topic, func() error { return publisher.Forward(ctx, topic, m) })
	}
	if err != nil {
		s.log.Error("dead-letter publish failed: the message is delivered again", slog.String("reason", why),
			slog.Any("cause", cause), slog.Any("error", err), slog.String("event_id", dead.UUID), slog.String("dead_letter_topic", topic))
		return false
	}
	s.observer.dead(ctx)
	s.log.Warn("message sent to the dead-letter topic", slog.String("reason", why), slog.Any("cause", cause),
		slog.String("event_id", dead.UUID), slog.String("dead_letter_topic", topic))
	return true
}

func (s *Subscription) publishDead(ctx context.Context, topic string, publish func() error) error {
	if err := s.shared.Resources.EnsureDeadLetterTopic(ctx, topic); err != nil {
		return err
	}
	if err := publish(); err != nil {
		return err
	}
	if !s.shared.Resources.KeepsDeadLetters(topic) {
		return fmt.Errorf("topic %s was deleted meanwhile", topic) // and perhaps made again, without a subscription
	}
	return nil
}
