package transport

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Unit ties what a handler publishes to the message that it consumes: both the published messages and the settlement of the
// consumed message take effect, or neither. Transports put the unit into the context of the consumed message. Their publishers
// look for it in the contexts of published messages; middleware.Unit copies it to the messages that a handler returns. Its
// methods may be called concurrently.
type Unit interface {
	// Domain names the system that makes the unit atomic: "kafka". A unit never spans two systems.
	Domain() string

	// Stage adds messages for the topic. They are sent after the consumed message is acked; a nack drops them. If the broker would
	// refuse a message, the error wraps ErrLimit or ErrRejected. After the ack or the nack the error wraps ErrUnitEnded. If Stage
	// fails, it has added nothing. The caller must not change the messages afterwards.
	Stage(topic string, msgs ...*message.Message) error

	// Savepoint returns a function that drops all messages staged after this call. It is for a failed attempt that another attempt
	// may follow in the same delivery.
	Savepoint() (rollback func())
}

var (
	// ErrNoUnit is returned when a message without a unit is published through a transactional publisher. Nothing was published:
	// give the message the context of the consumed one, or use a publisher that is not transactional.
	ErrNoUnit = errors.New("no unit: the message's context is not that of a consumed message")

	// ErrForeignUnit is returned when a message is published, or an event is claimed, within the unit of another transport or
	// system. The two cannot be atomic together. Nothing was published: use only one of the two in the handler.
	ErrForeignUnit = errors.New("the context is within a unit of another domain")

	// ErrUnitEnded is returned when a message is published after the consumed message was acked or nacked. Nothing was published:
	// ack after the last publish.
	ErrUnitEnded = errors.New("the consumed message was acked or nacked before")
)

type unitKey struct{}

// WithUnit returns a context that carries u. Transports call it. If u is nil, the context carries no unit.
func WithUnit(ctx context.Context, u Unit) context.Context {
	return context.WithValue(ctx, unitKey{}, u)
}

// UnitFrom returns the unit that the context carries, or nil.
func UnitFrom(ctx context.Context) Unit {
	u, _ := ctx.Value(unitKey{}).(Unit)
	return u
}
