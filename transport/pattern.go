package transport

import (
	"context"
	"fmt"
	"strings"
)

// IsPattern reports whether a topic passed to Subscribe is a regular expression for topic names: it begins with ^. Only the Kafka
// transport accepts patterns.
func IsPattern(topic string) bool { return strings.HasPrefix(topic, "^") }

// RefusePattern returns an error if the topic is a pattern, for transports that accept none.
func RefusePattern(topic string) error {
	if !IsPattern(topic) {
		return nil
	}
	return fmt.Errorf("%w: topic %q begins with ^, which makes it a regular expression, and only the Kafka transport takes one: want the name of one topic for each handler", ErrLimit, topic)
}

// TopicOf returns the topic of the message whose context is ctx. subscribed is the topic passed to Subscribe, as Watermill's
// message.SubscribeTopicFromCtx returns it; it may be a pattern.
func TopicOf(ctx context.Context, subscribed string) string {
	if IsPattern(subscribed) {
		if topic := OriginFrom(ctx)[OriginTopic]; topic != "" {
			return topic
		}
	}
	return subscribed
}
