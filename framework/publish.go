package framework

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"google.golang.org/protobuf/proto"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

// ErrNoService is returned by Publish for a context that is neither that of a handler nor that of a request to
// Service.HTTP, nor derived from one: use Service.Tx.
var ErrNoService = errors.New("no service in the context: publish with the context of a handler, of a request to Service.HTTP, or of Service.Tx")

// Publish publishes an event in the transaction that ctx carries: the handler's, or that of pgtx.Run or Service.Tx. If the
// transaction commits, the event reaches the broker at least once, always with the same ID; otherwise never. Without a
// transaction the error wraps outbox.ErrNoTransaction.
//
// The key names what the event is about, usually the ID of the row that the transaction writes. Events of one key keep
// their order. Events with an empty key have no order.
//
// With Kafka's transactional delivery the event is part of the Kafka transaction of the handler's message.
func Publish(ctx context.Context, topic, key string, value any) error {
	s := scopeOf(ctx).service
	if s == nil {
		return ErrNoService
	}
	msg, err := NewMessage(ctx, key, value)
	if err != nil {
		return fmt.Errorf("publish to %s: %w", topic, err)
	}
	if transport.UnitFrom(ctx) == nil {
		return s.outbox.Publish(topic, msg)
	}
	publisher, err := s.transport.Publisher()
	if err != nil {
		return err
	}
	return publisher.Publish(topic, msg)
}

// NewMessage returns the event as Publish writes it, with a new ID and the context, for Service.Outbox: to delay it with
// outbox.SetDeliverAfter, or to add metadata.
func NewMessage(ctx context.Context, key string, value any) (*message.Message, error) {
	msg, err := marshalerOf(value).Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", value, err)
	}
	msg.SetContext(ctx)
	transport.SetKey(msg, key)
	return msg, nil
}

func marshalerOf(value any) cqrs.CommandEventMarshaler {
	if _, ok := value.(proto.Message); ok {
		return cqrs.ProtoMarshaler{NewUUID: outbox.NewID, GenerateName: func(v any) string { return string(proto.MessageName(v.(proto.Message))) }}
	}
	return cqrs.JSONMarshaler{NewUUID: outbox.NewID, GenerateName: cqrs.StructName}
}

// format reads payloads of one type.
type format[T any] struct {
	cqrs.CommandEventMarshaler
	target func() (event *T, target any) // what is decoded, and what the marshaler is given for it
}

func formatOf[T any]() (format[T], error) {
	var zero T
	if m, ok := any(zero).(proto.Message); ok {
		kind := m.ProtoReflect().Type()
		return format[T]{marshalerOf(m), func() (*T, any) {
			event := kind.New().Interface()
			typed := event.(T)
			return &typed, event
		}}, nil
	}
	if _, ok := any(&zero).(proto.Message); ok {
		return format[T]{}, fmt.Errorf("the events' type is %T, which protobuf does not let be copied: want *%T", zero, zero)
	}
	return format[T]{marshalerOf(zero), func() (*T, any) {
		event := new(T)
		return event, event
	}}, nil
}
