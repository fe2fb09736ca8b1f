package kafka

import (
	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

// Marshaler is for the publishers and subscribers of watermill-kafka: PublisherConfig.Marshaler and SubscriberConfig.Unmarshaler.
// It reads and writes records as this transport does. watermill-kafka's own DefaultMarshaler writes records without a key, so
// that the events of a key are spread over all partitions and lose their order. watermill-kafka chooses the partition of a key
// by FNV-1a: where this transport publishes to the same topic, set ProducerConfig.Partitioner to FNV. It is safe for concurrent use.
type Marshaler struct{}

// Marshal returns the record of a message, with the message's key (transport.Key) as the record's. What this transport
// would not publish is an error that wraps transport.ErrLimit; the size is for the publisher and the brokers to judge.
func (Marshaler) Marshal(topic string, msg *message.Message) (*sarama.ProducerMessage, error) {
	limits := Limits
	limits.MessageBytes = 0
	if err := wire.Check(msg, limits); err != nil {
		return nil, err
	}
	record := wire.Marshal(msg)
	out := &sarama.ProducerMessage{Topic: topic, Value: sarama.ByteEncoder(record.Value), Headers: make([]sarama.RecordHeader, len(record.Headers))}
	for i, header := range record.Headers {
		out.Headers[i] = *header
	}
	if record.Key != nil {
		out.Key = sarama.ByteEncoder(record.Key)
	}
	return out, nil
}

// Unmarshal returns the message of a record.
func (Marshaler) Unmarshal(record *sarama.ConsumerMessage) (*message.Message, error) {
	return wire.Unmarshal(record), nil
}
