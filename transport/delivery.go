package transport

import (
	"context"
	"time"
)

// Delivery is one delivery of a message by a broker: what Watermill's Ack and Nack cannot say. Transports put it into
// the message's context. Its methods may be called concurrently, until the message is acked or nacked.
type Delivery interface {
	// Attempt is 1 for the first delivery of the message and higher for later ones; 0 when the broker does not tell.
	Attempt() int

	// RetryAfter asks that the message, when it is nacked, comes back no sooner than d later. It holds back neither
	// other keys nor a worker. Without Features.DelayedRedelivery it does nothing.
	RetryAfter(d time.Duration)

	// Reject asks that the message, when it is nacked, is not delivered again, because no redelivery can help: it cannot be
	// decoded, say. It goes to the consumer's dead-letter topic at once, with the cause, and the later messages of its key go
	// on. Without a dead-letter topic in the consumer's configuration that is the topic DeadLetterTopic, which is created like
	// any other. A message that cannot be sent there is delivered again. Under a claim it becomes a dead letter of the claim.
	Reject(cause error)

	// Rejected is the cause of the latest Reject; nil without one.
	Rejected() error

	// Handled tells that the handler is done and the ack follows once it is durable, so that an ordered lane may
	// move on. Optional: an ack implies it.
	Handled()
}

// Failures returns how many deliveries of the message have failed before this one. Those that only asked for a later one (RetryAfter)
// are no failures where the transport can tell: its deliveries then have a method of this name.
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

// DeliveryFrom returns the delivery that the context carries. It is never nil: without one it returns a delivery of an
// unknown attempt whose methods do nothing.
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
