package kafka

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// Limits is what a Kafka message can carry under the brokers' default settings: max.message.bytes is 1 MiB, and the
// framing takes some of it. ProducerConfig.MaxMessageBytes changes it. A topic that takes less is asked once; its limit
// holds then.
var Limits = transport.Limits{
	Topic:        regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`),
	MessageBytes: 1_000_000,
}

// limits is Limits as configured.
func (c Config) limits() transport.Limits {
	limits := Limits
	limits.MessageBytes = c.Producer.MaxMessageBytes
	return limits
}

// idHeader carries the event's ID, as watermill-kafka has it.
const idHeader = "_watermill_message_uuid"

func checkTopic(topic string) error {
	if !Limits.Topic.MatchString(topic) || topic == "." || topic == ".." {
		return fmt.Errorf("%w: topic %q: want 1 to 249 letters, digits, \".\", \"_\" and \"-\"", transport.ErrLimit, topic)
	}
	return nil
}

// check reports why the message cannot be published, as errors that wrap transport.ErrLimit.
func check(msg *message.Message, limits transport.Limits) error {
	limits.Topic = nil // it is checked once for a batch
	errs := []error{limits.Check("", msg), transport.CheckText(msg)}
	if _, ok := msg.Metadata[idHeader]; ok {
		errs = append(errs, fmt.Errorf("%w: metadata name %q is reserved: it carries the ID", transport.ErrLimit, idHeader))
	}
	return errors.Join(errs...)
}

// marshal shares the payload with msg. A message without a key has none on the wire either: an empty one would send all
// of them to one partition.
func marshal(msg *message.Message) *sarama.Record {
	headers := make([]sarama.RecordHeader, 1, len(msg.Metadata)+1)
	headers[0] = sarama.RecordHeader{Key: []byte(idHeader), Value: []byte(msg.UUID)}
	for name, value := range msg.Metadata {
		if name != transport.KeyMetadata {
			headers = append(headers, sarama.RecordHeader{Key: []byte(name), Value: []byte(value)})
		}
	}
	record := &sarama.Record{Value: msg.Payload, Headers: make([]*sarama.RecordHeader, len(headers))}
	for i := range headers {
		record.Headers[i] = &headers[i]
	}
	if record.Value == nil {
		record.Value = []byte{} // null is a tombstone, which a compacted topic takes as "delete the key"
	}
	if key := transport.Key(msg); key != "" {
		record.Key = []byte(key)
	}
	return record
}

// unmarshal never fails: a message without an ID is delivered with an empty one, so that the layer above decides what
// becomes of it. What Kafka knows of the message, such as its offset, is no metadata: it would be published again with
// whatever copies the metadata.
func unmarshal(m *sarama.ConsumerMessage) *message.Message {
	msg := message.NewMessage("", m.Value)
	for _, header := range m.Headers {
		switch name := string(header.Key); name {
		case idHeader:
			msg.UUID = string(header.Value)
		case transport.KeyMetadata:
		default:
			msg.Metadata[name] = string(header.Value)
		}
	}
	transport.SetKey(msg, string(m.Key))
	return msg
}

// newBatch returns a batch of records without a producer: fill in its ID, epoch and sequence.
func newBatch(records []*sarama.Record, codec sarama.CompressionCodec, now time.Time) *sarama.RecordBatch {
	for i, record := range records {
		record.OffsetDelta = int64(i)
	}
	now = now.Truncate(time.Millisecond)
	return &sarama.RecordBatch{
		Version:          2,
		Codec:            codec,
		CompressionLevel: sarama.CompressionLevelDefault,
		FirstTimestamp:   now,
		MaxTimestamp:     now,
		LastOffsetDelta:  int32(len(records) - 1),
		Records:          records,
	}
}
