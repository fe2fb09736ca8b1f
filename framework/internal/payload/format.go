package payload

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"google.golang.org/protobuf/proto"

	"github.com/millrace-go/millrace/outbox"
)

// format encodes and decodes payloads of one type.
type format[T any] struct {
	cqrs.CommandEventMarshaler
	protobuf string                        // the name of the message; "" for JSON
	target   func() (event *T, target any) // returns a new event, and the argument for the marshaler that fills it
}

func formatOf[T any]() (format[T], error) {
	var zero T
	if m, ok := any(zero).(proto.Message); ok {
		made := m.ProtoReflect().Type()
		marshaler := cqrs.ProtoMarshaler{NewUUID: outbox.NewID, GenerateName: func(v any) string { return string(proto.MessageName(v.(proto.Message))) }}
		return format[T]{marshaler, string(made.Descriptor().FullName()), func() (*T, any) {
			event := made.New().Interface()
			typed := event.(T)
			return &typed, event
		}}, nil
	}
	if _, ok := any(&zero).(proto.Message); ok {
		return format[T]{}, fmt.Errorf("the events' type is %T, which protobuf does not let be copied: want *%T", zero, zero)
	}
	return format[T]{cqrs.JSONMarshaler{NewUUID: outbox.NewID, GenerateName: cqrs.StructName}, "", func() (*T, any) {
		event := new(T)
		return event, event
	}}, nil
}

func (f format[T]) decode(msg *message.Message) (T, error) {
	event, target := f.target()
	if err := f.Unmarshal(msg, target); err != nil {
		return *event, fmt.Errorf("decode the payload as %T: %w", *event, err)
	}
	return *event, nil
}
