package pubsub

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

// buryTimeout bounds the publish to the dead-letter topic.
const buryTimeout = 30 * time.Second

// exhausted tells whether the message, which was nacked once more, has had all its attempts.
func (s *subscription) exhausted(m *pubsub.Message, retries int) bool {
	return s.settings.DeadLetter.Topic != "" && attempts(m, retries) >= s.settings.DeadLetter.MaxAttempts
}

// attempts counts also where Pub/Sub does not, because the subscription that exists is without the policy.
func attempts(m *pubsub.Message, retries int) int {
	first := 1
	if m.DeliveryAttempt != nil {
		first = *m.DeliveryAttempt
	}
	return first + retries
}

// bury publishes the message to the dead-letter topic: one that was rejected for the cause, or, without one, an ordered
// message that failed too often. That is retried in place, so Pub/Sub does not see its attempts, and would never send it
// there.
func (s *subscription) bury(ctx context.Context, m *pubsub.Message, retries int, cause error) bool {
	ctx, cancel := context.WithTimeout(ctx, buryTimeout)
	defer cancel()
	topic := s.settings.DeadLetter.Topic
	if topic == "" {
		topic = transport.DeadLetterTopic(s.topic, s.config.Consumer)
	}
	dead := wire.Unmarshal(m)
	if own := dead.UUID; wire.Identify(s.settings.EventID, dead, wire.PlaceOf(s.topic, m)) != nil {
		dead.UUID = own
	}
	dead.Metadata[DeadDeliveriesMetadata] = strconv.Itoa(attempts(m, retries))
	dead.Metadata[DeadSubscriptionMetadata] = path.Base(s.name)
	dead.Metadata[DeadProjectMetadata] = s.transport.config.ProjectID
	dead.Metadata[DeadPublishTimeMetadata] = m.PublishTime.UTC().Format("2006-01-02T15:04:05.999Z07:00")
	why := "failed too often"
	if cause != nil {
		why = "was rejected"
		transport.MarkRejected(dead, cause)
	}
	publisher := s.transport.publisher
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
	s.observer.buried(ctx)
	s.log.Warn("message sent to the dead-letter topic", slog.String("reason", why), slog.Any("cause", cause),
		slog.String("event_id", dead.UUID), slog.String("dead_letter_topic", topic))
	return true
}

func (s *subscription) publishDead(ctx context.Context, topic string, publish func() error) error {
	if err := s.transport.resources.EnsureDeadLetterTopic(ctx, topic); err != nil {
		return err
	}
	if err := publish(); err != nil {
		return err
	}
	if !s.transport.resources.KeepsDeadLetters(topic) {
		return fmt.Errorf("topic %s was deleted meanwhile", topic) // and perhaps made again, without a subscription
	}
	return nil
}
