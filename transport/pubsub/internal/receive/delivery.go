package receive

import (
	"sync/atomic"
	"time"

	"cloud.google.com/go/pubsub/v2"

	"github.com/millrace-go/millrace/internal/lifespan"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// Outcome is what became of one delivery.
type Outcome int

// The outcomes.
const (
	Acked Outcome = iota
	Nacked
	Undelivered // never handed to a handler
	Abandoned   // still running when the drain timeout ended
)

// Delivery implements transport.Delivery. It also is the context of the message.
type Delivery struct {
	lifespan.Context
	transport.Rejection
	attempt int
	after   atomic.Int64    // nanoseconds; 0: nobody asked
	giveUp  <-chan struct{} // closed when it is too late to give the message to a handler; nil: never

	topic        string
	received     *pubsub.Message
	unidentified error // why the message has no event ID

	withdrawn bool // taken back before a handler got it; set before the message is nacked
}

// NewDelivery is for a message that was nacked retries times since Pub/Sub delivered it, and comes again from within the
// process. giveUp is closed when it is too late to give the message to a handler; nil is never.
func NewDelivery(m *pubsub.Message, retries int, giveUp <-chan struct{}) *Delivery {
	d := &Delivery{giveUp: giveUp}
	if m.DeliveryAttempt != nil { // only with a dead-letter policy
		d.attempt = *m.DeliveryAttempt + retries
	}
	return d
}

// Attempt implements transport.Delivery.
func (d *Delivery) Attempt() int { return d.attempt }

// RetryAfter implements transport.Delivery.
func (d *Delivery) RetryAfter(after time.Duration) { d.after.Store(int64(after)) }

// Handled implements transport.Delivery.
func (d *Delivery) Handled() {}

// Asked tells whether the handler asked for a delay: then its nack is no failure of the message.
func (d *Delivery) Asked() bool { return d.after.Load() > 0 }

// Delay is what the handler asked for.
func (d *Delivery) Delay() time.Duration { return time.Duration(d.after.Load()) }

// givenUp tells whether it is too late to give the message to a handler.
func (d *Delivery) givenUp() bool {
	select {
	case <-d.giveUp:
		return true
	default:
		return false
	}
}

// Origin implements transport.Originated.
func (d *Delivery) Origin() transport.Origin { return wire.OriginOf(d.topic, d.received) }

// EventIDError implements transport.Originated.
func (d *Delivery) EventIDError() error { return d.unidentified }
