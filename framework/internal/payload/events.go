package payload

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/catalog"
	"github.com/millrace-go/millrace/cloudevent"
)

// Events are the events of a topic: one type, in its current version and in older versions with upcasts.
type Events[T any] struct {
	Kind   Kind
	format format[T]
	older  map[int]Step // older version -> the step that upcasts it
}

// Of returns the events of a Go type. If kind is zero, type and version come from the name of the Go type.
func Of[T any](kind Kind, steps []Step) (e Events[T], err error) {
	var formatErr error
	e.format, formatErr = formatOf[T]()
	if e.Kind = kind; kind == (Kind{}) {
		e.Kind = kindOf(reflect.TypeFor[T](), e.format.protobuf)
	}
	e.older, err = chain(steps, e.Kind.Version, reflect.TypeFor[T]())
	return e, errors.Join(formatErr, err)
}

// Message returns the message that is published for an event, with a new ID.
func (e Events[T]) Message(event T) (*message.Message, error) {
	msg, err := e.format.Marshal(event)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", event, err)
	}
	if e.Kind.Name != "" {
		msg.Metadata.Set(TypeMetadata, e.Kind.Name)
		msg.Metadata.Set(VersionMetadata, strconv.Itoa(e.Kind.Version))
	}
	if e.format.protobuf != "" {
		msg.Metadata.Set(cloudevent.ContentType, "application/protobuf")
	}
	return msg, nil
}

// Carried returns the kind in a message's metadata. A message without a type has the topic's.
func (e Events[T]) Carried(msg *message.Message) (Kind, error) {
	carried, err := KindFrom(msg.Metadata)
	if carried.Name == "" {
		carried.Name = e.Kind.Name
	}
	return carried, err
}

// Knows reports whether Decode can read events of this kind.
func (e Events[T]) Knows(carried Kind) bool {
	_, known := e.older[carried.Version]
	return e.isOwn(carried) || known && carried.Name == e.Kind.Name
}

func (e Events[T]) isOwn(carried Kind) bool { return e.Kind.Any || carried == e.Kind }

// Decode reads an event whose kind Knows accepts.
func (e Events[T]) Decode(carried Kind, msg *message.Message) (event T, err error) {
	if e.isOwn(carried) {
		return e.format.decode(msg)
	}
	value, err := e.older[carried.Version].decode(msg)
	for version := carried.Version; err == nil && version != e.Kind.Version; version = e.older[version].to {
		if value, err = e.older[version].apply(value); err != nil {
			err = fmt.Errorf("upcast version %d of %s to version %d: %w", version, e.Kind.Name, e.older[version].to, err)
		}
	}
	if err != nil {
		return event, err
	}
	event, _ = value.(T) // chain has checked the type; a nil interface stays nil
	return event, nil
}

// Known describes the versions that Decode can read.
func (e Events[T]) Known() string {
	var versions []string
	for _, version := range append(slices.Sorted(maps.Keys(e.older)), e.Kind.Version) {
		versions = append(versions, strconv.Itoa(version))
	}
	return fmt.Sprintf("version %s of %s", strings.Join(versions, " or "), cmp.Or(e.Kind.Name, "events without a type"))
}

// Catalog describes the events for the service's catalog: the current version first, then the older ones.
func (e Events[T]) Catalog() []catalog.Event {
	all := []catalog.Event{{Type: e.Kind.Name, Version: e.Kind.Version, Go: reflect.TypeFor[T](), Protobuf: e.format.protobuf}}
	for _, from := range slices.Sorted(maps.Keys(e.older)) {
		all = append(all, catalog.Event{Type: e.Kind.Name, Version: from, Go: e.older[from].in, Protobuf: e.older[from].protobuf})
	}
	return all
}
