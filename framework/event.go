package framework

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/framework/internal/cloud"
	"github.com/millrace-go/millrace/framework/internal/payload"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/transport"
)

// Event is what a handler knows about an event besides its payload.
type Event struct {
	ID    string // made once, when the event was published; the same in every delivery
	Key   string // events of one key keep their order; "" for none
	Topic string
	// Type and Version come from the event's metadata; "" and 1 if it has neither.
	Type    string
	Version int
	// Metadata must not be changed.
	Metadata message.Metadata
	// Attempt is 1 for the first delivery; 0 if the broker does not count deliveries.
	Attempt int
}

type contextKey struct{}

// scope is the value that a context of the service carries.
type scope struct {
	service *Service
	msg     *message.Message // nil outside of a handler
}

// withService returns a context that carries the service and its ledger.
func withService(ctx context.Context, s *Service) context.Context {
	if scopeOf(ctx).service == s {
		return ctx
	}
	return effect.With(context.WithValue(ctx, contextKey{}, scope{service: s}), s.effects)
}

func scopeOf(ctx context.Context) scope {
	s, _ := ctx.Value(contextKey{}).(scope)
	return s
}

// bind adds the service, the message and the ledger to the message's context.
func (s *Service) bind(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := context.WithValue(msg.Context(), contextKey{}, scope{service: s, msg: msg})
		msg.SetContext(effect.With(ctx, s.effects))
		return h(msg)
	}
}

// EventFrom returns the event whose handler has this context, or a zero Event outside of handlers.
func EventFrom(ctx context.Context) Event {
	msg := scopeOf(ctx).msg
	if msg == nil {
		return Event{}
	}
	if unpacked, err := cloud.Unpack(msg); err == nil {
		msg = unpacked
	}
	carried, _ := payload.KindFrom(msg.Metadata) // Handle makes an event with a wrong version a dead letter
	return Event{
		ID: msg.UUID, Key: transport.Key(msg), Topic: transport.TopicOf(ctx, message.SubscribeTopicFromCtx(ctx)), Type: carried.Name, Version: carried.Version,
		Metadata: msg.Metadata, Attempt: transport.DeliveryFrom(ctx).Attempt(),
	}
}
