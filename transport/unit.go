package transport

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Unit is what a transactional delivery ties to a consumed message: what its handler publishes becomes visible together
// with the settlement of the message, or not at all. Transports put it into the message's context, and their publishers
// look for it in the contexts of what is published; middleware.Unit carries it to the messages that a handler returns. Its
// methods may be called concurrently.
type Unit interface {
	// Domain names what makes the unit atomic, which is one system and no other: "kafka".
	Domain() string

	// Stage adds messages for the topic. They are sent after the ack of the consumed message; a nack drops them. Stage
	// fails with an error that wraps ErrLimit or ErrRejected for what the broker would refuse, and with ErrUnitEnded after
	// the ack or the nack; it has added nothing then. The messages must not be changed any more.
	Stage(topic string, msgs ...*message.Message) error

	// Savepoint returns a function that drops what is staged after this call: for an attempt that has failed when another
	// may follow in the same delivery.
	Savepoint() (rollback func())
}

var (
	// ErrNoUnit is the error of publishing through a transactional publisher outside of a consumed message. Nothing was
	// published: give the message the context of the consumed one, or use a publisher that is not transactional.
	ErrNoUnit = errors.New("no unit: the message's context is not that of a consumed message")

	// ErrForeignUnit is the error of publishing, or of a claim, within the unit of another transport or system, with
	// which it cannot be atomic. Nothing was published: choose one of the two for the handler.
	ErrForeignUnit = errors.New("the context is within a unit of another domain")

	// ErrUnitEnded is the error of publishing after the consumed message was acked or nacked. Nothing was published: ack
	// when all is published.
	ErrUnitEnded = errors.New("the consumed message was acked or nacked before")
)

type unitKey struct{}

// WithUnit returns a context that carries u. Transports call it; with nil, what follows is in no unit.
func WithUnit(ctx context.Context, u Unit) context.Context {
	return context.WithValue(ctx, unitKey{}, u)
}

// UnitFrom returns the unit that the context carries, or nil.
func UnitFrom(ctx context.Context) Unit {
	u, _ := ctx.Value(unitKey{}).(Unit)
	return u
}
