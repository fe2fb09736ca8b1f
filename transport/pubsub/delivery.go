package pubsub

import (
	"sync/atomic"
	"time"

	"cloud.google.com/go/pubsub/v2"

	"github.com/millrace-go/millrace/internal/lifespan"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/wire"
)

// outcome is what became of one delivery.
type outcome int

const (
	acked outcome = iota
	nacked
	undelivered // never handed to a handler
	abandoned   // still running when the drain timeout ended
)

// delivery implements transport.Delivery. It also is the context of the message.
type delivery struct {
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

// newDelivery is for a message that was nacked retries times since Pub/Sub delivered it, and comes again from within the
// process.
func newDelivery(m *pubsub.Message, retries int) *delivery {
	d := &delivery{}
	if m.DeliveryAttempt != nil { // only with a dead-letter policy
		d.attempt = *m.DeliveryAttempt + retries
	}
	return d
}

func (d *delivery) Attempt() int                   { return d.attempt }
func (d *delivery) RetryAfter(after time.Duration) { d.after.Store(int64(after)) }
func (d *delivery) Handled()                       {}

// asked tells whether the handler asked for a delay: then its nack is no failure of the message.
func (d *delivery) asked() bool { return d.after.Load() > 0 }

func (d *delivery) delay() time.Duration { return time.Duration(d.after.Load()) }

// givenUp tells whether it is too late to give the message to a handler.
func (d *delivery) givenUp() bool {
	select {
	case <-d.giveUp:
		return true
	default:
		return false
	}
}

// Origin implements transport.Originated.
func (d *delivery) Origin() transport.Origin { return wire.OriginOf(d.topic, d.received) }

// EventIDError implements transport.Originated.
func (d *delivery) EventIDError() error { return d.unidentified }
