package redelivery

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/outbox"
)

type sourceKey struct{}

// Source says that a message came through a Subscriber.
type Source struct {
	Consumer, Topic string
	Event           *store.Event // nil: the broker delivered the message
	Claimed         atomic.Bool  // the event of the table has reached its claim
	Inner           *Source      // the source of another consumer, whose Subscriber this one wraps
}

// From returns the source of the message with this context, or nil.
func From(ctx context.Context) *Source {
	s, _ := ctx.Value(sourceKey{}).(*Source)
	return s
}

// With returns a context for a message of the source.
func With(ctx context.Context, s *Source) context.Context {
	return context.WithValue(ctx, sourceKey{}, s)
}

// Row returns the event of the table that the message was made from, or nil if the broker delivered it.
func (s *Source) Row() *store.Event {
	if s == nil {
		return nil
	}
	return s.Event
}

// Due returns when a delayed event was due, as the outbox wrote it, or zero for other events.
func Due(msg *message.Message) time.Time {
	const layout = "2006-01-02T15:04:05.000000Z"
	text := msg.Metadata.Get(outbox.DueMetadata)
	due, err := time.Parse(layout, text)
	if err != nil || due.Format(layout) != text { // Parse accepts other forms too
		return time.Time{}
	}
	return due
}
