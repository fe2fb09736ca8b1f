package transport

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// EventIDSource says where the ID of a consumed event comes from. Events that Millrace or Watermill published carry their IDs;
// other producers put IDs elsewhere, or write none. The zero value reads the ID that Millrace writes. The transports have
// functions that return other sources. A configuration file names them "header:NAME", "json:PATH" and, depending on the broker,
// "offset" or "message_id".
type EventIDSource struct {
	kind eventIDKind
	name string // the header's name, or the JSON path
}

type eventIDKind int

const (
	ownHeader eventIDKind = iota
	namedHeader
	jsonPath
	offset
	messageID
)

const wantEventID = `want header:NAME or json:PATH, or by the broker offset (Kafka) or message_id (Pub/Sub)`

// EventIDFromHeader takes the ID from the header (on Pub/Sub, the attribute) with this name, such as "ce_id". A message without
// the header has no ID.
func EventIDFromHeader(name string) EventIDSource { return EventIDSource{namedHeader, name} }

// EventIDFromJSON takes the ID from the payload, which must be a JSON object. The path "data.id" is the field id of the object
// data. The field must be a string or a number. A message without the field has no ID.
func EventIDFromJSON(path string) EventIDSource { return EventIDSource{jsonPath, path} }

// EventIDFromOffset is for Kafka: see kafka.EventIDFromOffset.
func EventIDFromOffset() EventIDSource { return EventIDSource{kind: offset} }

// EventIDFromMessageID is for Pub/Sub: see pubsub.EventIDFromMessageID.
func EventIDFromMessageID() EventIDSource { return EventIDSource{kind: messageID} }

// String returns the text for a configuration file: "" for the zero value.
func (s EventIDSource) String() string {
	switch s.kind {
	case ownHeader:
		return ""
	case namedHeader:
		return "header:" + s.name
	case jsonPath:
		return "json:" + s.name
	case offset:
		return "offset"
	case messageID:
		return "message_id"
	}
	return fmt.Sprintf("EventIDSource(%d)", s.kind)
}

// MarshalText returns the text for a configuration file.
func (s EventIDSource) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses the text of a configuration file.
func (s *EventIDSource) UnmarshalText(text []byte) error {
	kind, name, named := strings.Cut(string(text), ":")
	switch {
	case kind == "header" && named:
		*s = EventIDFromHeader(name)
	case kind == "json" && named:
		*s = EventIDFromJSON(name)
	case kind == "offset" && !named:
		*s = EventIDFromOffset()
	case kind == "message_id" && !named:
		*s = EventIDFromMessageID()
	case len(text) == 0:
		*s = EventIDSource{}
	default:
		return errors.New(wantEventID)
	}
	return nil
}

// Validate reports what is wrong with the source. own is the source whose IDs the broker itself makes: EventIDFromOffset or
// EventIDFromMessageID. reserved is the header in which Millrace writes its IDs.
func (s EventIDSource) Validate(own EventIDSource, reserved string) error {
	want := fmt.Sprintf("want header:NAME, json:PATH or %s", own)
	switch s.kind {
	case ownHeader:
		return nil
	case namedHeader:
		switch s.name {
		case "":
			return fmt.Errorf("%q: the header has no name: %s", s, want)
		case reserved:
			return fmt.Errorf("%q: this is where the ID is by default: want no EventID at all", s)
		}
		return nil
	case jsonPath:
		for _, field := range strings.Split(s.name, ".") {
			if field == "" {
				return fmt.Errorf("%q: the path has an empty field: want fields with dots between, such as json:data.id", s)
			}
		}
		return nil
	case offset, messageID:
		if s.kind == own.kind {
			return nil
		}
	}
	return fmt.Errorf("%q, which this broker does not have: %s", s, want)
}

// Find returns the ID of a message. own is the ID that Millrace wrote, or "". byBroker makes an ID from the broker's position of
// the message; Find calls it only if own is empty, because duplicates of a message with an ID have other positions in the broker.
// The error says what is missing and how to correct that.
func (s EventIDSource) Find(own string, msg *message.Message, byBroker func() string) (string, error) {
	id, err := own, error(nil)
	switch s.kind {
	case ownHeader:
		if id == "" {
			err = errors.New("no header has one")
		}
	case namedHeader:
		if id = msg.Metadata[s.name]; id == "" {
			err = fmt.Errorf("the header %q is missing or empty", s.name)
		}
	case jsonPath:
		id, err = s.lookUp(msg.Payload)
	case offset, messageID:
		if id == "" {
			id = byBroker()
		}
	}
	return id, err
}

// lookUp returns the string or number at the path.
func (s EventIDSource) lookUp(payload []byte) (string, error) {
	if len(payload) == 0 {
		return "", fmt.Errorf("the payload is empty, so it has no %q", s.name)
	}
	value, path := json.RawMessage(payload), strings.Split(s.name, ".")
	for i, field := range path {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(value, &object); err != nil || object == nil {
			return "", fmt.Errorf("the payload has no %q: %s is no JSON object", s.name, part(path[:i]))
		}
		found, ok := object[field]
		if !ok {
			return "", fmt.Errorf("the payload has no %q: %s has no field %q", s.name, part(path[:i]), field)
		}
		value = found
	}
	var text string
	var number json.Number
	if json.Unmarshal(value, &text) == nil && text != "" {
		if strings.ContainsRune(text, utf8.RuneError) { // json.Unmarshal replaces invalid bytes with RuneError, so different IDs would become equal
			return "", fmt.Errorf("the payload's %q is no valid UTF-8", s.name)
		}
		return text, nil
	}
	if value[0] != '"' && json.Unmarshal(value, &number) == nil && number != "" {
		return number.String(), nil
	}
	return "", fmt.Errorf("the payload's %q is no string and no number, or empty", s.name)
}

// part describes the value at a path in an error message.
func part(path []string) string {
	if len(path) == 0 {
		return "it"
	}
	return fmt.Sprintf("%q", strings.Join(path, "."))
}
