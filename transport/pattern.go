package transport

import (
	"context"
	"fmt"
	"strings"
)

// IsPattern tells whether a topic that Subscribe is given is a regular expression over the names of topics: it begins with ^.
// Only the Kafka transport takes one.
func IsPattern(topic string) bool { return strings.HasPrefix(topic, "^") }

// RefusePattern returns the error of a transport that takes no pattern; nil where the topic is none.
func RefusePattern(topic string) error {
	if !IsPattern(topic) {
		return nil
	}
	return fmt.Errorf("%w: topic %q begins with ^, which makes it a regular expression, and only the Kafka transport takes one: want the name of one topic for each handler", ErrLimit, topic)
}

// TopicOf is the topic of the message whose context it is, where subscribed is what its subscriber was given: Watermill's
// message.SubscribeTopicFromCtx, say, which is the pattern where that is one.
func TopicOf(ctx context.Context, subscribed string) string {
	if IsPattern(subscribed) {
		if topic := OriginFrom(ctx)[OriginTopic]; topic != "" {
			return topic
		}
	}
	return subscribed
}
