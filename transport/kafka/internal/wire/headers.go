package wire

import (
	"context"
	"slices"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
)

// RecordKey is the key under which the context of a consumed message has its record, a *sarama.ConsumerMessage.
type RecordKey struct{}

// headersKey is the key under which a context has the headers of what is published with it.
type headersKey struct{}

// WithHeaders returns a context with which Marshal writes the headers.
func WithHeaders(ctx context.Context, headers []*sarama.RecordHeader) context.Context {
	return context.WithValue(ctx, headersKey{}, headers)
}

// headersOf returns the headers that the message's context has for it, without what Marshal writes in any case.
func headersOf(msg *message.Message) []*sarama.RecordHeader {
	headers, _ := msg.Context().Value(headersKey{}).([]*sarama.RecordHeader)
	return slices.DeleteFunc(slices.Clone(headers), func(h *sarama.RecordHeader) bool { return string(h.Key) == IDHeader })
}

// has reports whether one of the headers has the name.
func has(headers []*sarama.RecordHeader, name string) bool {
	return slices.ContainsFunc(headers, func(h *sarama.RecordHeader) bool { return string(h.Key) == name })
}

// Repeated returns the headers of the record whose names it repeats, in their order. The metadata of its message has only the last of
// each name.
func Repeated(record *sarama.ConsumerMessage) (repeated []*sarama.RecordHeader) {
	counts := map[string]int{}
	for _, h := range record.Headers {
		counts[string(h.Key)]++
	}
	for _, h := range record.Headers {
		if counts[string(h.Key)] > 1 {
			repeated = append(repeated, h)
		}
	}
	return repeated
}
