package kafka

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
)

// What is added to the metadata of a message that goes to a dead-letter topic. The first four are named as those that
// package claim adds to what it forwards.
const (
	DeadReasonMetadata    = "millrace_dead_reason"    // "attempts"
	DeadConsumerMetadata  = "millrace_dead_consumer"  // whose handler failed
	DeadTopicMetadata     = "millrace_dead_topic"     // where the message came from
	DeadAttemptsMetadata  = "millrace_dead_attempts"  // a decimal number
	DeadPartitionMetadata = "millrace_dead_partition" // of the topic, a decimal number
	DeadOffsetMetadata    = "millrace_dead_offset"    // in the partition, a decimal number
)

const (
	// buryTimeout bounds the publish to the dead-letter topic.
	buryTimeout = 30 * time.Second
	// buryDelay is how long a message waits that should be in the dead-letter topic and could not be sent there. Then it
	// is delivered once more.
	buryDelay = time.Second
)

// bury publishes the message to the dead-letter topic.
func (in *intake) bury(ctx context.Context, e *entry) bool {
	ctx, cancel := context.WithTimeout(ctx, buryTimeout)
	defer cancel()
	record, topic := e.value.(*sarama.ConsumerMessage), in.settings.DeadLetter.Topic
	msg := unmarshal(record)
	msg.SetContext(ctx)
	msg.Metadata[DeadReasonMetadata] = "attempts"
	msg.Metadata[DeadConsumerMetadata] = in.config.Consumer
	msg.Metadata[DeadTopicMetadata] = in.topic
	msg.Metadata[DeadAttemptsMetadata] = strconv.Itoa(e.attempts)
	msg.Metadata[DeadPartitionMetadata] = strconv.Itoa(int(in.number))
	msg.Metadata[DeadOffsetMetadata] = strconv.FormatInt(e.offset, 10)
	log := in.log.With(slog.String("event_id", msg.UUID), slog.String("dead_letter_topic", topic),
		slog.Int("partition", int(in.number)), slog.Int64("offset", e.offset))
	if err := errors.Join(in.transport.publisher.PublishBatch(ctx, topic, []*message.Message{msg})...); err != nil {
		log.Error("a message that failed too often cannot be sent to the dead-letter topic: it is tried on", slog.Any("error", err))
		return false
	}
	in.observer.buried(ctx)
	log.Warn("a message that failed too often was sent to the dead-letter topic")
	return true
}
