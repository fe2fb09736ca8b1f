package redelivery

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

const (
	// longestRest is the longest nack delay. It prevents a hot loop without taking much of the worker's time.
	longestRest = 200 * time.Millisecond
	// ContendedRest is the nack delay of a contended message. It is short, because the holder is soon done and the worker has other
	// messages.
	ContendedRest = 20 * time.Millisecond
)

// Rest is the delivery of a message whose transport has none and redelivers at once after a nack. It delays the nack itself, after
// everything else has been released.
type Rest struct {
	transport.Rejection
	msg   *message.Message // a context may be shared with other messages
	after time.Duration

	Nack bool // End nacks the message
}

// Attempt implements transport.Delivery. Nothing counts attempts.
func (r *Rest) Attempt() int { return 0 }

// RetryAfter implements transport.Delivery.
func (r *Rest) RetryAfter(after time.Duration) { r.after = after }

// Handled implements transport.Delivery. Nothing waits for it.
func (r *Rest) Handled() {}

// NewRest returns a Rest for the message. End must follow.
func NewRest(msg *message.Message) *Rest { return &Rest{msg: msg} }

// RestOf returns the message's Rest, or nil if its transport has deliveries.
func RestOf(msg *message.Message) *Rest {
	if r, ok := transport.DeliveryFrom(msg.Context()).(*Rest); ok && r.msg == msg {
		return r
	}
	return nil
}

// LacksDelivery reports whether the message has no delivery of its own.
func LacksDelivery(msg *message.Message) bool {
	d := transport.DeliveryFrom(msg.Context())
	_, rests := d.(*Rest)
	return d == transport.DeliveryFrom(context.Background()) || rests && RestOf(msg) == nil
}

// End waits for the nack delay if the message is nacked, here or by the router because of err.
func (r *Rest) End(err error) {
	if !r.Nack && err == nil {
		return
	}
	select {
	case <-time.After(min(r.after, longestRest)):
	case <-r.msg.Context().Done():
	}
	if r.Nack {
		r.msg.Nack()
	}
}
