package transport

import (
	"context"
	"time"
)

// Delivery is one delivery of a message by a broker. It has what Watermill's Ack and Nack lack. Transports put it into the
// message's context. Its methods may be called concurrently until the message is acked or nacked.
type Delivery interface {
	// Attempt returns 1 for the first delivery of the message, more for later ones, and 0 if the broker does not count deliveries.
	Attempt() int

	// RetryAfter asks for a redelivery no sooner than d after the message is nacked. The wait blocks neither other keys nor a
	// worker. Without Features.DelayedRedelivery it does nothing.
	RetryAfter(d time.Duration)

	// Reject asks that the message is not redelivered after its nack. It is for messages that no redelivery can help, such as one
	// that cannot be decoded. The message goes to the consumer's dead-letter topic at once, with the cause, and the later messages
	// of its key continue. If the consumer's configuration has no dead-letter topic, the topic is DeadLetterTopic, which is created
	// like any other. A message that cannot be sent there is redelivered. Under a claim it becomes a dead letter of the claim.
	// Reject(nil) takes an earlier Reject back.
	Reject(cause error)

	// Rejected returns the cause of the latest Reject, or nil if there was none.
	Rejected() error

	// Handled reports that the handler is done and that the ack will follow once the result is durable. An ordered lane may then
	// deliver its next message. The call is optional: an ack implies it.
	Handled()
}

// Failures returns how many earlier deliveries of the message have failed. Deliveries that only asked for a later redelivery
// (RetryAfter) are not counted if the transport can tell them apart: its deliveries then have a method Failures.
func Failures(d Delivery) int {
	if counted, ok := d.(interface{ Failures() int }); ok {
		return counted.Failures()
	}
	return max(d.Attempt()-1, 0)
}

type deliveryKey struct{}

// WithDelivery returns a context that carries d. Transports call it.
func WithDelivery(ctx context.Context, d Delivery) context.Context {
	return context.WithValue(ctx, deliveryKey{}, d)
}

// DeliveryFrom returns the delivery that the context carries. It never returns nil: without a delivery in the context it returns
// one whose attempt is unknown and whose methods do nothing.
func DeliveryFrom(ctx context.Context) Delivery {
	if d, ok := ctx.Value(deliveryKey{}).(Delivery); ok {
		return d
	}
	return noDelivery{}
}

type noDelivery struct{}

func (noDelivery) Attempt() int             { return 0 }
func (noDelivery) RetryAfter(time.Duration) {}
func (noDelivery) Reject(error)             {}
func (noDelivery) Rejected() error          { return nil }
func (noDelivery) Handled()                 {}
