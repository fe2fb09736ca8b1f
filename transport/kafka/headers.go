package kafka

import (
	"context"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

// Header is a header of a record. Its value may be any bytes; nil is Kafka's null.
type Header struct {
	Name  string
	Value []byte
}

// HeadersFrom returns all headers of the record that a handler processes, in the record's order. Its ctx is the context of the consumed
// message, or derived from it; with another one the result is nil. A record may repeat a name: the message's metadata has the last value,
// as Java's Headers.lastHeader. The values must not be changed.
//
// What a claim runs again from its table has metadata and no record, so it has no headers.
func HeadersFrom(ctx context.Context) []Header {
	record, _ := ctx.Value(wire.RecordKey{}).(*sarama.ConsumerMessage)
	if record == nil {
		return nil
	}
	headers := make([]Header, len(record.Headers))
	for i, h := range record.Headers {
		headers[i] = Header{string(h.Key), h.Value}
	}
	return headers
}

// WithHeaders returns a context for messages that are published with these headers, in this order. They come before those of the
// metadata, and replace those of the same name; the message's own ID is written in any case. So a handler copies a record with all
// its headers:
//
//	out.SetContext(kafka.WithHeaders(in.Context(), kafka.HeadersFrom(in.Context())...))
//
// It is for the publishers of this transport. The outbox keeps only metadata.
func WithHeaders(ctx context.Context, headers ...Header) context.Context {
	records := make([]*sarama.RecordHeader, len(headers))
	for i, h := range headers {
		records[i] = &sarama.RecordHeader{Key: []byte(h.Name), Value: h.Value}
	}
	return wire.WithHeaders(ctx, records)
}
