package claim

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
	// contendedRest is for how long a contended one does: the worker has better things to do, and the holder is soon done.
	contendedRest = 20 * time.Millisecond
)

// rest is the delivery of a transport that has none, and redelivers at once what is nacked: the nack itself waits, after
// all else has been released.
type rest struct {
	transport.Rejection
	msg   *message.Message // a context may reach other messages
	after time.Duration
	nack  bool
}

func (r *rest) Attempt() int                   { return 0 }
func (r *rest) RetryAfter(after time.Duration) { r.after = after }
func (r *rest) Handled()                       {}

// restOf returns the message's rest, nil where its transport has deliveries.
func restOf(msg *message.Message) *rest {
	if r, ok := transport.DeliveryFrom(msg.Context()).(*rest); ok && r.msg == msg {
		return r
	}
	return nil
}

// lacksDelivery reports whether the message came without a delivery of its own.
func lacksDelivery(msg *message.Message) bool {
	d := transport.DeliveryFrom(msg.Context())
	_, rests := d.(*rest)
	return d == transport.DeliveryFrom(context.Background()) || rests && restOf(msg) == nil
}

// end rests before the message is nacked, here or by the router because of err.
func (r *rest) end(err error) {
	if !r.nack && err == nil {
		return
	}
	select {
	case <-time.After(min(r.after, longestRest)):
	case <-r.msg.Context().Done():
	}
	if r.nack {
		r.msg.Nack()
	}
}
