package group

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/lane"
	"github.com/millrace-go/millrace/transport/kafka/internal/produce"
	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

// The metadata that is added to a dead letter; package kafka describes it.
const (
	DeadReasonMetadata    = transport.DeadReasonMetadata
	DeadErrorMetadata     = transport.DeadErrorMetadata
	DeadConsumerMetadata  = "millrace_dead_consumer"
	DeadTopicMetadata     = "millrace_dead_topic"
	DeadAttemptsMetadata  = "millrace_dead_attempts"
	DeadPartitionMetadata = "millrace_dead_partition"
	DeadOffsetMetadata    = "millrace_dead_offset"
)

const (
	// deadLetterTimeout bounds the publish to the dead-letter topic.
	deadLetterTimeout = 30 * time.Second
	// deadLetterDelay is how long a message waits if it could not be sent to the dead-letter topic. Then it is delivered again.
	deadLetterDelay = time.Second
)

// The reasons.
const (
	deadAttempts = "attempts"
	deadRefused  = "refused"
	deadKilled   = "killed"
)

// errNoDeadLetters is returned for a consumer without a dead-letter topic.
var errNoDeadLetters = errors.New("the consumer has no dead-letter topic")

// newDeadLetter makes the message for the dead-letter topic.
func (s *Subscription) newDeadLetter(ctx context.Context, e *lane.Entry, reason string) *message.Message {
	record := consumedOf(e).record
	msg := s.original(ctx, record)
	msg.Metadata[DeadReasonMetadata] = reason
	msg.Metadata[DeadConsumerMetadata] = s.config.Consumer
	msg.Metadata[DeadTopicMetadata] = record.Topic
	msg.Metadata[DeadAttemptsMetadata] = strconv.Itoa(e.Attempts)
	msg.Metadata[DeadPartitionMetadata] = strconv.Itoa(int(record.Partition))
	msg.Metadata[DeadOffsetMetadata] = strconv.FormatInt(e.Offset, 10)
	return msg
}

// original returns the message as it came, with all headers, and with the ID by which its consumer knows it, otherwise with its own.
func (s *Subscription) original(ctx context.Context, record *sarama.ConsumerMessage) *message.Message {
	msg := wire.Unmarshal(record)
	if repeated := wire.Repeated(record); len(repeated) > 0 {
		ctx = wire.WithHeaders(ctx, repeated)
	}
	msg.SetContext(ctx)
	if own := msg.UUID; wire.Identify(s.config.EventID, msg, wire.PlaceOf(record)) != nil {
		msg.UUID = own
	}
	return msg
}

// sendDead sends the dead letter. If it exceeds the limits, it is sent without the added metadata.
func (s *Subscription) sendDead(ctx context.Context, e *lane.Entry, reason string, send func(*message.Message) error) error {
	err := send(s.newDeadLetter(ctx, e, reason))
	if errors.Is(err, transport.ErrLimit) || errors.Is(err, transport.ErrRejected) {
		err = send(s.original(ctx, consumedOf(e).record))
	}
	return err
}

// deadLetter publishes the message to the dead-letter topic or, with transactions, makes it the message's output. cause is the error
// beside the reason; it is nil if the message failed too often.
func (p *partitionConsumer) deadLetter(ctx context.Context, e *lane.Entry, reason string, cause error) bool {
	ctx, cancel := context.WithTimeout(ctx, deadLetterTimeout)
	defer cancel()
	topic := p.config.DeadLetters
	if topic == "" {
		topic = transport.DeadLetterTopic(p.topic, p.config.Consumer)
	}
	log := p.log.With(slog.String("event_id", p.original(ctx, consumedOf(e).record).UUID), slog.String("dead_letter_topic", topic),
		slog.Int("partition", int(p.number)), slog.Int64("offset", e.Offset), slog.String("reason", reason), slog.Any("cause", cause))
	err := p.sendDead(ctx, e, reason, func(msg *message.Message) (err error) {
		if cause != nil && msg.Metadata[DeadReasonMetadata] == reason { // otherwise there is no room for it
			transport.MarkRejected(msg, cause)
			msg.Metadata[DeadReasonMetadata] = reason
		}
		if p.committer != nil {
			consumedOf(e).outputs, err = p.shared.Publisher.Stage(topic, []*message.Message{msg}, false)
			return err
		}
		return p.shared.Publisher.Forward(ctx, topic, msg)
	})
	if err != nil {
		log.Error("dead-letter publish failed: the message is delivered again", slog.Any("error", err))
		return false
	}
	p.observer.deadLettered(ctx)
	log.Warn("message sent to the dead-letter topic")
	return true
}

// refuse makes a dead letter of a message whose outputs the brokers reject.
func (s *Subscription) refuse(source any) ([]*produce.Output, error) {
	topic := s.config.DeadLetters
	if topic == "" {
		return nil, errNoDeadLetters
	}
	ctx, cancel := context.WithTimeout(s.messages, deadLetterTimeout)
	defer cancel()
	var outputs []*produce.Output
	err := s.sendDead(ctx, &source.(*consumed).Entry, deadRefused, func(msg *message.Message) (err error) {
		outputs, err = s.shared.Publisher.Stage(topic, []*message.Message{msg}, false)
		return err
	})
	if err == nil {
		s.of(source.(*consumed).record.Topic).observer.deadLettered(ctx)
	}
	return outputs, err
}
