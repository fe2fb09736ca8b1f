package framework

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"google.golang.org/protobuf/proto"

	"github.com/millrace-go/millrace/cloudevent"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

// What an event of a topic carries in its metadata besides Watermill's own entries.
const (
	TypeMetadata    = "millrace_type"    // such as "OrderPlaced"
	VersionMetadata = "millrace_version" // a decimal number, 1 or more
)

// ErrNoService is returned by Publish for a context that is neither that of a handler nor that of a request to
// Service.HTTP, nor derived from one: use Service.Tx.
var ErrNoService = errors.New("no service in the context: publish with the context of a handler, of a request to Service.HTTP, or of Service.Tx")

// TopicOf is a topic of a broker, whose events this program knows as values of type T. Make it with Topic. All methods may be
// called concurrently.
type TopicOf[T any] struct {
	name   string
	kind   kind
	format format[T]
	older  map[int]upcast // by the version from which they lead on
	err    error          // what is wrong with the topic
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
	var formatErr error
	t.format, formatErr = formatOf[T]()
	c := topicConfig{kind: kindOf(reflect.TypeFor[T](), t.format.name)}
	for _, option := range options {
		option(&c)
	}
	t.kind = c.kind
	var upcastErr error
	t.older, upcastErr = chain(c.upcasts, t.kind.version, reflect.TypeFor[T]())
	errs := []error{formatErr, c.err, upcastErr}
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
	msg, err := t.format.Marshal(event)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", event, err)
	}
	if t.kind.name != "" {
		msg.Metadata.Set(TypeMetadata, t.kind.name)
		msg.Metadata.Set(VersionMetadata, strconv.Itoa(t.kind.version))
	}
	if t.format.name != "" {
		msg.Metadata.Set(cloudevent.ContentType, "application/protobuf")
	}
	msg.SetContext(ctx)
	transport.SetKey(msg, key)
	return msg, nil
}

// decode reads an event of any version from which upcasts lead to that of the topic. The error is an UnknownVersionError
// where there is none.
func (t *TopicOf[T]) decode(msg *message.Message) (event T, err error) {
	carried, err := kindFrom(msg.Metadata)
	if err != nil {
		return event, err
	}
	if carried.name == "" {
		carried.name = t.kind.name
	}
	if t.kind.any || carried == t.kind {
		return t.format.decode(msg)
	}
	first, known := t.older[carried.version]
	if !known || carried.name != t.kind.name {
		return event, &UnknownVersionError{Type: carried.name, Version: carried.version, Known: t.known()}
	}
	value, err := first.decode(msg)
	for version := carried.version; err == nil && version != t.kind.version; version = t.older[version].to {
		if value, err = t.older[version].apply(value); err != nil {
			err = fmt.Errorf("upcast version %d of %s to version %d: %w", version, t.kind.name, t.older[version].to, err)
		}
	}
	if err != nil {
		return event, err
	}
	event, _ = value.(T) // chain has checked the type; a nil interface stays nil
	return event, nil
}

// format reads and writes payloads of one type.
type format[T any] struct {
	cqrs.CommandEventMarshaler
	name   string                        // protobuf's; "" for JSON
	target func() (event *T, target any) // what is decoded, and what the marshaler is given for it
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

// raw is the type of a payload that nobody decodes.
var raw = reflect.TypeFor[json.RawMessage]()
