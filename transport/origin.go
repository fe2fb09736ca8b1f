package transport

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Origin has values that the broker, and not the producer, knows about a message: on Kafka topic, partition, offset and
// timestamp. Each redelivery has the same values. They are no metadata, because a handler might publish metadata again. Each
// transport chooses its names.
type Origin map[string]string

// OriginTopic is the name under which the Origin of a transport that accepts patterns has the topic.
const OriginTopic = "topic"

// Originated is implemented by deliveries of transports that know the origin of a message.
type Originated interface {
	Delivery

	// Origin returns the message's origin. The caller may keep it.
	Origin() Origin

	// EventIDError returns why the message has no event ID and how to correct that, or nil if it has one.
	EventIDError() error
}

// OriginFrom returns the origin of the message whose context is ctx, or nil if the transport does not know it.
func OriginFrom(ctx context.Context) Origin {
	if d, ok := DeliveryFrom(ctx).(Originated); ok {
		return d.Origin()
	}
	return nil
}

// EventIDErrorFrom returns why the message whose context is ctx has no event ID. It returns nil if the message has one or if the
// transport does not know.
func EventIDErrorFrom(ctx context.Context) error {
	if d, ok := DeliveryFrom(ctx).(Originated); ok {
		return d.EventIDError()
	}
	return nil
}

// EventIDFinder is implemented by subscribers that can find the ID of a stored message that was delivered without one.
// FindEventID uses the current configuration, which may have changed since the delivery. A claim calls it when a dead letter is
// replayed.
type EventIDFinder interface {
	FindEventID(msg *message.Message, origin Origin) (string, error)
}
