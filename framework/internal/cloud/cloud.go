// Package cloud converts a service's events to CloudEvents and back.
package cloud

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/millrace-go/millrace/cloudevent"
	"github.com/millrace-go/millrace/framework/internal/payload"
	"github.com/millrace-go/millrace/transport"
)

// Codec converts a service's events to CloudEvents.
type Codec struct {
	Source  string
	Binding cloudevent.Binding
}

// Encode turns a message to publish into a CloudEvent, unless the mode is Off or it is one already.
func (c Codec) Encode(mode cloudevent.Mode, msg *message.Message) error {
	if mode == cloudevent.Off || cloudevent.Is(msg) {
		return nil
	}
	e, err := c.cloudEvent(msg)
	if err != nil {
		return err
	}
	carried, err := cloudevent.ToMessage(e, c.Binding, mode)
	if err != nil {
		return err
	}
	maps.DeleteFunc(msg.Metadata, func(name, _ string) bool { return isOfCloudEvent(name) })
	maps.Copy(msg.Metadata, carried.Metadata)
	msg.Payload = carried.Payload
	return nil
}

// isOfCloudEvent reports whether the metadata entry is, or becomes, an attribute of a CloudEvent.
func isOfCloudEvent(name string) bool {
	return name == payload.TypeMetadata || name == payload.VersionMetadata || strings.EqualFold(name, cloudevent.ContentType) ||
		strings.HasPrefix(name, "ce_") || strings.HasPrefix(name, "ce-")
}

func (c Codec) cloudEvent(msg *message.Message) (event.Event, error) {
	e := event.New()
	k, err := payload.KindFrom(msg.Metadata)
	if err != nil {
		return e, err
	}
	if k.Name == "" {
		return e, fmt.Errorf("a CloudEvent has a type, and this event has none: give its topic the option EventType, or the message the metadata %s", payload.TypeMetadata)
	}
	e.SetID(msg.UUID)
	e.SetSource(c.Source)
	e.SetType(k.CloudEvent())
	at, ok := payload.Happened(msg.UUID)
	if !ok {
		at = time.Now()
	}
	e.SetTime(at.UTC())
	if key := transport.Key(msg); key != "" {
		e.SetSubject(key)
		e.SetExtension("partitionkey", key)
	}
	for _, name := range []string{"traceparent", "tracestate"} {
		if value := msg.Metadata[name]; value != "" {
			e.SetExtension(name, value)
		}
	}
	for name, value := range msg.Metadata {
		switch attribute, ok := strings.CutPrefix(name, cloudevent.Prefix); {
		case !ok || slices.Contains(minted, attribute):
		case attribute == "dataschema":
			e.SetDataSchema(value)
		case attribute == "subject":
			e.SetSubject(value)
		default:
			e.SetExtension(attribute, value)
		}
	}
	contentType := cmp.Or(msg.Metadata[cloudevent.ContentType], msg.Metadata["Content-Type"])
	if contentType == "" && json.Valid(msg.Payload) {
		contentType = event.ApplicationJSON
	}
	e.SetDataContentType(cmp.Or(contentType, "application/octet-stream"))
	e.DataEncoded = msg.Payload
	return e, nil
}

// minted are attributes that each event gets anew. A message may still have those of another event, whose metadata it copied.
var minted = []string{"specversion", "id", "source", "type", "time", "partitionkey", "traceparent", "tracestate"}

// EventID returns the ID by which a claim recognizes duplicates of a message.
func EventID(msg *message.Message) (string, error) {
	if !cloudevent.Is(msg) {
		return msg.UUID, nil
	}
	return cloudevent.EventID(msg)
}

// Unpack converts a CloudEvent to a message: its payload is the event's data, and its metadata the attributes. It returns any
// other message unchanged.
func Unpack(msg *message.Message) (*message.Message, error) {
	if !cloudevent.Is(msg) {
		return msg, nil
	}
	e, err := cloudevent.FromMessage(msg)
	if err != nil {
		return nil, err
	}
	id, err := cloudevent.EventID(msg)
	if err != nil {
		return nil, err
	}
	attributes, err := cloudevent.Attributes(e, cloudevent.Kafka)
	if err != nil {
		return nil, err
	}
	// Without specversion the unpacked message is not taken for a CloudEvent again.
	delete(attributes, cloudevent.Prefix+"specversion")
	unpacked := message.NewMessage(id, e.Data())
	for name, value := range msg.Metadata {
		if !isOfCloudEvent(name) {
			unpacked.Metadata.Set(name, value)
		}
	}
	maps.Copy(unpacked.Metadata, attributes)
	payload.SetKind(unpacked.Metadata, e.Type())
	return unpacked, nil
}
