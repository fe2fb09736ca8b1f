package framework

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/framework/internal/payload"
	"github.com/millrace-go/millrace/transport"
)

// Metadata entries that an event of a topic has besides Watermill's own.
const (
	TypeMetadata    = payload.TypeMetadata    // "millrace_type": a name such as "OrderPlaced"
	VersionMetadata = payload.VersionMetadata // "millrace_version": a decimal number, 1 or more
)

// ErrNoService is returned by Publish if its context does not come from a handler or from a request to Service.HTTP. Elsewhere
// use Service.Tx.
var ErrNoService = errors.New("no service in the context: publish with the context of a handler, of a request to Service.HTTP, or of Service.Tx")

// TopicOf is a topic of a broker, whose events this program knows as values of type T. Make it with Topic. All methods may be
// called concurrently.
type TopicOf[T any] struct {
	name   string
	events payload.Events[T]
	err    error // why the topic is wrong; nil if it is not
}

// Topic returns the topic of that name. It is usually a variable of a package, which producer and consumer share:
//
//	var OrderPlaced = framework.Topic[OrderPlacedV2]("orders.placed", framework.Upcast(1, 2, addCurrency))
//
// A payload is JSON, or protobuf if T is a proto.Message (a pointer, as in generated code).
//
// Each event carries the name of its type, and its version. Both come from the name of T: OrderPlaced is version 1 of
// "OrderPlaced", and OrderPlacedV2 is version 2 of it. A protobuf message shop.v2.OrderPlaced is version 2 of
// "shop.OrderPlaced". EventType sets them for a type that has another name. An event that carries neither, because another
// library has published it, counts as version 1. With json.RawMessage a topic reads events of all types and versions, and
// publishes events that carry neither.
//
// If the topic or one of its options is wrong, Publish, Message and Handle return the error.
func Topic[T any](name string, options ...TopicOption) *TopicOf[T] {
	t := &TopicOf[T]{name: name}
	var c topicConfig
	for _, option := range options {
		option(&c)
	}
	var err error
	t.events, err = payload.Of[T](c.kind, c.upcasts)
	errs := []error{err, c.err}
	if name == "" {
		errs = append(errs, errors.New("the topic is empty: want the name of one"))
	}
	if err := errors.Join(errs...); err != nil {
		t.err = fmt.Errorf("topic %q: %w", name, err)
	}
	return t
}

// Name is the topic's name on the broker.
func (t *TopicOf[T]) Name() string { return t.name }

// Publish publishes an event in the transaction that ctx carries: the handler's, or that of pgtx.Run or Service.Tx. If the
// transaction commits, the event reaches the broker at least once, always with the same ID; otherwise never. Without a
// transaction the error wraps outbox.ErrNoTransaction.
//
// The key names what the event is about, usually the ID of the row that the transaction writes. Events of one key keep
// their order. Events with an empty key have no order.
//
// With Kafka's transactional delivery the event is part of the Kafka transaction of the handler's message. Without a database
// (Config.Postgres.Disabled) there is no other way: elsewhere the error wraps ErrNoPostgres.
func (t *TopicOf[T]) Publish(ctx context.Context, key string, event T) error {
	s := scopeOf(ctx).service
	if s == nil {
		return ErrNoService
	}
	msg, err := t.Message(ctx, key, event)
	if err != nil {
		return fmt.Errorf("publish to %s: %w", t.name, err)
	}
	if transport.UnitFrom(ctx) == nil {
		if s.bare {
			return fmt.Errorf("publish to %s: without the context of a message that is being handled: %w", t.name, ErrNoPostgres)
		}
		return s.outbox.Publish(t.name, msg)
	}
	if err := s.encodeTraced(t.name, msg); err != nil {
		return fmt.Errorf("publish to %s: %w", t.name, err)
	}
	publisher, err := s.transport.Publisher()
	if err != nil {
		return err
	}
	return publisher.Publish(t.name, msg)
}

// Message returns the event as Publish writes it, with a new ID and the context, for Service.Outbox: to delay it with
// outbox.SetDeliverAfter, or to add metadata.
func (t *TopicOf[T]) Message(ctx context.Context, key string, event T) (*message.Message, error) {
	if t.err != nil {
		return nil, t.err
	}
	msg, err := t.events.Message(event)
	if err != nil {
		return nil, err
	}
	msg.SetContext(ctx)
	transport.SetKey(msg, key)
	return msg, nil
}

// decode reads an event of the topic's version, or of an older version that upcasts convert to it. For any other version the
// error is an UnknownVersionError.
func (t *TopicOf[T]) decode(msg *message.Message) (event T, err error) {
	carried, err := t.events.Carried(msg)
	if err != nil {
		return event, err
	}
	if !t.events.Knows(carried) {
		return event, &UnknownVersionError{Type: carried.Name, Version: carried.Version, Known: t.events.Known()}
	}
	return t.events.Decode(carried, msg)
}
