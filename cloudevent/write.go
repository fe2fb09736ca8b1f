package cloudevent

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"

	"github.com/millrace-go/millrace/transport"
)

// ToMessage returns a message with the event. Its ID is the attribute id, and its key the extension partitionkey. The error is an
// AttributeError if the event is not valid.
func ToMessage(e event.Event, b Binding, m Mode) (*message.Message, error) {
	return write(e, b.prefix(), m)
}

func write(e event.Event, prefix string, m Mode) (*message.Message, error) {
	if err := check(e); err != nil {
		return nil, err
	}
	var msg *message.Message
	switch m {
	case Binary:
		metadata, err := attributes(e, prefix)
		if err != nil {
			return nil, err
		}
		msg = message.NewMessage(e.ID(), e.Data())
		msg.Metadata = metadata
	case Structured:
		// The SDK reads data of a +json type as a string, other libraries read it as a value; all of them read base64.
		e.DataBase64 = strings.HasSuffix(mediaType(e.DataContentType()), "+json") || !utf8.Valid(e.Data())
		if len(e.DataEncoded) == 0 {
			e.DataEncoded = nil // otherwise the SDK writes "data": without a value
		}
		payload, err := json.Marshal(e)
		if err != nil {
			return nil, fmt.Errorf("encode the CloudEvent: %w", err)
		}
		msg = message.NewMessage(e.ID(), payload)
		msg.Metadata.Set(ContentType, structured)
	case Off:
		return nil, errors.New("encode the CloudEvent: the mode is Off: want Binary or Structured")
	default:
		return nil, fmt.Errorf("encode the CloudEvent: the mode is %s: want Binary or Structured", m)
	}
	if key, ok := e.Extensions()[partitionKey].(string); ok {
		transport.SetKey(msg, key)
	}
	return msg, nil
}

// dataMember is the data's name in structured mode, so no extension may have that name.
const dataMember = "data"

// check reports an error of an event. Millrace writes only version 1.0 of the specification.
func check(e event.Event) error {
	if e.Context == nil || e.SpecVersion() != specVersion {
		return wrong("specversion", "is missing, or not %q: make the event by event.New()", specVersion)
	}
	if err := validate(e); err != nil {
		return err
	}
	if _, err := parseSource(e.Source()); err != nil {
		return err
	}
	if _, ok := e.Extensions()[dataMember]; ok {
		return wrong(dataMember, "is an extension: want another name, because it is the data's in structured mode")
	}
	if len(e.Data()) > 0 && isJSON(e.DataContentType()) && !json.Valid(e.Data()) {
		return wrong("data", "is not valid JSON, as datacontenttype is %q", e.DataContentType())
	}
	return nil
}

// Attributes returns the event's attributes as ToMessage writes them in binary mode.
func Attributes(e event.Event, b Binding) (message.Metadata, error) { return attributes(e, b.prefix()) }

func attributes(e event.Event, prefix string) (message.Metadata, error) {
	metadata := message.Metadata{}
	set := func(name, value string) {
		if value != "" {
			metadata.Set(prefix+name, value)
		}
	}
	set("specversion", e.SpecVersion())
	set("id", e.ID())
	set("source", e.Source())
	set("type", e.Type())
	set("subject", e.Subject())
	set("dataschema", e.DataSchema())
	if at := e.Time(); !at.IsZero() {
		set("time", types.FormatTime(at))
	}
	for name, value := range e.Extensions() {
		text, err := types.Format(value)
		if err != nil {
			return nil, wrong(name, "is wrong: %v", err)
		}
		set(name, text)
	}
	if of := e.DataContentType(); of != "" {
		metadata.Set(ContentType, of)
	}
	return metadata, nil
}
