package kafka

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// What is added to the metadata of a message that goes to a dead-letter topic. The first four are named as those that
// package claim adds to what it forwards.
const (
	DeadReasonMetadata    = "millrace_dead_reason"    // "attempts"; "refused" when the brokers do not take what its handler has published
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

// The reasons.
const (
	deadAttempts = "attempts"
	deadRefused  = "refused"
)

// errNoDeadLetters is of a consumer that has no dead-letter topic.
var errNoDeadLetters = errors.New("the consumer has no dead-letter topic")

// deadLetter makes the message for the dead-letter topic.
func (s *subscription) deadLetter(ctx context.Context, e *entry, reason string) *message.Message {
	record := e.value.(*sarama.ConsumerMessage)
	msg := s.original(record)
	msg.SetContext(ctx)
	msg.Metadata[DeadReasonMetadata] = reason
	msg.Metadata[DeadConsumerMetadata] = s.config.Consumer
	msg.Metadata[DeadTopicMetadata] = s.topic
	msg.Metadata[DeadAttemptsMetadata] = strconv.Itoa(e.attempts)
	msg.Metadata[DeadPartitionMetadata] = strconv.Itoa(int(record.Partition))
	msg.Metadata[DeadOffsetMetadata] = strconv.FormatInt(e.offset, 10)
	return msg
}

// original is the message as it came, with the ID by which its consumer knows it, or else with its own.
func (s *subscription) original(record *sarama.ConsumerMessage) *message.Message {
	msg := unmarshal(record)
	if own := msg.UUID; s.settings.identify(msg, placeOf(record)) != nil {
		msg.UUID = own
	}
	return msg
}

// sendDead sends the dead letter, without the reasons where there is no room for them.
func (s *subscription) sendDead(ctx context.Context, e *entry, reason string, send func(*message.Message) error) error {
	err := send(s.deadLetter(ctx, e, reason))
	if errors.Is(err, transport.ErrLimit) || errors.Is(err, transport.ErrRejected) {
		msg := s.original(e.value.(*sarama.ConsumerMessage))
		msg.SetContext(ctx)
		err = send(msg)
	}
	return err
}

// bury publishes the message to the dead-letter topic, or makes it the message's output, where that is sent in a
// transaction.
func (in *intake) bury(ctx context.Context, e *entry) bool {
	ctx, cancel := context.WithTimeout(ctx, buryTimeout)
	defer cancel()
	topic := in.settings.DeadLetter.Topic
	log := in.log.With(slog.String("event_id", in.original(e.value.(*sarama.ConsumerMessage)).UUID), slog.String("dead_letter_topic", topic),
		slog.Int("partition", int(in.number)), slog.Int64("offset", e.offset))
	err := in.sendDead(ctx, e, deadAttempts, func(msg *message.Message) (err error) {
		if in.committer != nil {
			e.outputs, err = in.transport.publisher.stage(topic, []*message.Message{msg}, false)
			return err
		}
		return in.transport.publisher.forward(ctx, topic, msg)
	})
	if err != nil {
		log.Error("a message that failed too often cannot be sent to the dead-letter topic: it is tried on", slog.Any("error", err))
		return false
	}
	in.observer.buried(ctx)
	log.Warn("a message that failed too often was sent to the dead-letter topic")
	return true
}

// refuse makes a dead letter of a message whose outputs the brokers refuse.
func (s *subscription) refuse(e *entry) ([]*output, error) {
	topic := s.settings.DeadLetter.Topic
	if topic == "" {
		return nil, errNoDeadLetters
	}
	ctx, cancel := context.WithTimeout(s.messages, buryTimeout)
	defer cancel()
	var outputs []*output
	err := s.sendDead(ctx, e, deadRefused, func(msg *message.Message) (err error) {
		outputs, err = s.transport.publisher.stage(topic, []*message.Message{msg}, false)
		return err
	})
	if err == nil {
		s.observer.buried(ctx)
	}
	return outputs, err
}
