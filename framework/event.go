package framework

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/framework/internal/cloud"
	"github.com/millrace-go/millrace/framework/internal/payload"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/transport"
)

// Event is what travels with an event besides its payload.
type Event struct {
	ID    string // minted once, where the event happened; every delivery has the same
	Key   string // of its order; "" for none
	Topic string
	// Type and Version are what the event says about itself; "" and 1 where it says nothing.
	Type    string
	Version int
	// Metadata must not be changed.
	Metadata message.Metadata
	// Attempt is 1 for the first delivery; 0 where the broker does not tell.
	Attempt int
}

type contextKey struct{}

// scope is what a context of the service's carries.
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

// bind makes the context of a message tell what it belongs to, and carry the ledger.
func (s *Service) bind(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := context.WithValue(msg.Context(), contextKey{}, scope{service: s, msg: msg})
		msg.SetContext(effect.With(ctx, s.effects))
		return h(msg)
	}
}

// EventFrom returns the event that is being handled in this context; a zero Event outside of handlers.
func EventFrom(ctx context.Context) Event {
	msg := scopeOf(ctx).msg
	if msg == nil {
		return Event{}
	}
	if unpacked, err := cloud.Unpack(msg); err == nil {
		msg = unpacked
	}
	carried, _ := payload.KindFrom(msg.Metadata) // of a version that is no number Handle makes a dead letter
	return Event{
		ID: msg.UUID, Key: transport.Key(msg), Topic: transport.TopicOf(ctx, message.SubscribeTopicFromCtx(ctx)), Type: carried.Name, Version: carried.Version,
		Metadata: msg.Metadata, Attempt: transport.DeliveryFrom(ctx).Attempt(),
	}
}
