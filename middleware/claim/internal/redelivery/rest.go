package redelivery

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

const (
	// longestRest bounds how long a message holds up its worker in place of the broker's delay: no hot loop, and not much
	// of the worker's time.
	longestRest = 200 * time.Millisecond
	// ContendedRest is for how long a contended one does: the worker has better things to do, and the holder is soon done.
	ContendedRest = 20 * time.Millisecond
)

// Rest is the delivery of a transport that has none, and redelivers at once what is nacked: the nack itself waits, after
// all else has been released.
type Rest struct {
	transport.Rejection
	msg   *message.Message // a context may reach other messages
	after time.Duration

	Nack bool // at the end
}

// Attempt implements transport.Delivery: nobody counts.
func (r *Rest) Attempt() int { return 0 }

// RetryAfter implements transport.Delivery.
func (r *Rest) RetryAfter(after time.Duration) { r.after = after }

// Handled implements transport.Delivery: nothing waits for it.
func (r *Rest) Handled() {}

// NewRest returns the message's rest, whose End must follow.
func NewRest(msg *message.Message) *Rest { return &Rest{msg: msg} }

// RestOf returns the message's rest, nil where its transport has deliveries.
func RestOf(msg *message.Message) *Rest {
	if r, ok := transport.DeliveryFrom(msg.Context()).(*Rest); ok && r.msg == msg {
		return r
	}
	return nil
}

// LacksDelivery reports whether the message came without a delivery of its own.
func LacksDelivery(msg *message.Message) bool {
	d := transport.DeliveryFrom(msg.Context())
	_, rests := d.(*Rest)
	return d == transport.DeliveryFrom(context.Background()) || rests && RestOf(msg) == nil
}

// End rests before the message is nacked, here or by the router because of err.
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
