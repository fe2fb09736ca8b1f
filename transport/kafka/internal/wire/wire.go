// Package wire converts messages to and from Kafka's records, and finds what identifies a record. It does no I/O.
package wire

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// Limits is what a Kafka message can carry with the brokers' default settings: max.message.bytes is 1 MiB, and the framing takes some of
// it.
var Limits = transport.Limits{
	Topic:        regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`),
	MessageBytes: 1_000_000,
}

// IDHeader carries the event's ID. watermill-kafka uses the same header.
const IDHeader = "_watermill_message_uuid"

var idHeader = []byte(IDHeader) // shared by all records, and never changed

// MetadataHeader carries all metadata of a message in one header, as JSON in base64. Debezium publishes the outbox's headers column in
// this way, because it cannot make a record header of each.
const MetadataHeader = "_millrace_metadata"

// CheckTopic returns an error that wraps transport.ErrLimit if no topic can have the name.
func CheckTopic(topic string) error {
	if !Limits.Topic.MatchString(topic) || topic == "." || topic == ".." {
		return fmt.Errorf("%w: topic %q: want 1 to 249 letters, digits, \".\", \"_\" and \"-\"", transport.ErrLimit, topic)
	}
	return nil
}

// Check reports why the message cannot be published, as errors that wrap transport.ErrLimit.
func Check(msg *message.Message, limits transport.Limits) error {
	limits.Topic = nil // it is checked once for a batch
	errs := []error{limits.Check("", msg), transport.CheckText(msg)}
	if _, ok := msg.Metadata[IDHeader]; ok {
		errs = append(errs, fmt.Errorf("%w: metadata name %q is reserved: it carries the ID", transport.ErrLimit, IDHeader))
	}
	return errors.Join(errs...)
}

// usualHeaders is how many headers most records have at most, with the ID.
const usualHeaders = 4

// together is a record with its headers, which takes one allocation for most messages.
type together struct {
	sarama.Record
	headers  [usualHeaders]sarama.RecordHeader
	pointers [usualHeaders]*sarama.RecordHeader
}

// Marshal returns the message's record, which shares the payload with msg. A message without a key has no key in the record: an empty key
// would send all such messages to one partition. A nil payload becomes null, a tombstone, which deletes the key in a compacted topic. An
// empty payload stays empty. Headers of the message's context (WithHeaders) replace those of the metadata.
func Marshal(msg *message.Message) *sarama.Record {
	t, size, given := new(together), len(msg.UUID), headersOf(msg)
	for name, value := range msg.Metadata {
		size += len(name) + len(value)
	}
	text := make([]byte, 0, size) // of the ID, the key and the headers
	bytes := func(s string) []byte {
		from := len(text)
		text = append(text, s...)
		return text[from:len(text):len(text)]
	}
	headers := append(t.headers[:0], sarama.RecordHeader{Key: idHeader, Value: bytes(msg.UUID)})
	for name, value := range msg.Metadata {
		if name != transport.KeyMetadata && !has(given, name) {
			headers = append(headers, sarama.RecordHeader{Key: bytes(name), Value: bytes(value)})
		}
	}
	record := &t.Record
	record.Value, record.Headers = msg.Payload, t.pointers[:0]
	record.Headers = append(append(record.Headers, &headers[0]), given...)
	for i := range headers[1:] {
		record.Headers = append(record.Headers, &headers[1+i])
	}
	if key := transport.Key(msg); key != "" {
		record.Key = bytes(key)
	}
	return record
}

// Unmarshal never fails. A message without an ID is delivered with an empty one, and the layer above decides what to do with it. The
// payload of a tombstone is nil. What Kafka knows of the message, such as its offset, is not put into the metadata: code that copies the
// metadata would publish it again. Of several headers with one name, the last is in the metadata.
func Unmarshal(m *sarama.ConsumerMessage) *message.Message {
	return UnmarshalAs(m, OwnID(m), string(m.Key))
}

// UnmarshalAs is Unmarshal where the record's own ID and its key are known as strings.
func UnmarshalAs(m *sarama.ConsumerMessage, id, key string) *message.Message {
	msg := message.NewMessage(id, m.Value)
	for _, header := range m.Headers {
		switch string(header.Key) { // a variable would be allocated
		case IDHeader, transport.KeyMetadata:
		case MetadataHeader:
			if !unpack(header.Value, msg.Metadata) {
				msg.Metadata[MetadataHeader] = string(header.Value)
			}
		default:
			msg.Metadata[string(header.Key)] = string(header.Value)
		}
	}
	transport.SetKey(msg, key)
	return msg
}

// unpack adds the metadata of a MetadataHeader, and reports whether it holds metadata.
func unpack(packed []byte, metadata message.Metadata) bool {
	decoded, err := base64.StdEncoding.DecodeString(string(packed))
	if err != nil {
		return false
	}
	var found map[string]string
	if err := json.Unmarshal(decoded, &found); err != nil {
		return false
	}
	for name, value := range found {
		if name != IDHeader && name != transport.KeyMetadata { // they are not metadata
			metadata[name] = value
		}
	}
	return true
}

// Compression is how a batch is compressed.
type Compression struct {
	Codec sarama.CompressionCodec
	Level int // 0: the codec's default
}

// NewBatch returns a batch without a producer; the caller sets ID, epoch and sequence.
func NewBatch(records []*sarama.Record, compression Compression, now time.Time) *sarama.RecordBatch {
	for i, record := range records {
		record.OffsetDelta = int64(i)
	}
	now = now.Truncate(time.Millisecond)
	return &sarama.RecordBatch{
		Version:          2,
		Codec:            compression.Codec,
		CompressionLevel: cmp.Or(compression.Level, sarama.CompressionLevelDefault),
		FirstTimestamp:   now,
		MaxTimestamp:     now,
		LastOffsetDelta:  int32(len(records) - 1),
		Records:          records,
	}
}

const (
	// BatchOverhead is the framing of a batch (https://kafka.apache.org/documentation/#recordbatch).
	BatchOverhead = 61
	// recordOverhead is the largest size that a record adds to its key, value and headers: seven varints and its attributes.
	recordOverhead = 6*5 + 10 + 1
	// headerOverhead is the largest size that a header adds to its name and value.
	headerOverhead = 2 * 5
)

// RecordSize returns the largest size of the record in a batch, in bytes.
func RecordSize(r *sarama.Record) int {
	n := recordOverhead + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += headerOverhead + len(h.Key) + len(h.Value)
	}
	return n
}
