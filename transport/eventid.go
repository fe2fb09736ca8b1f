package transport

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// EventIDSource says where the ID of a consumed event comes from. Events that Millrace or Watermill published carry their
// IDs; other producers put theirs elsewhere, or have none. The zero value reads the ID that Millrace writes. The transports
// have functions that make the others, and a configuration file has their texts: "header:NAME", "json:PATH" and, by the
// broker, "offset" or "message_id".
type EventIDSource struct {
	kind eventIDKind
	name string // of the header, or the path
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

// EventIDFromHeader takes the ID from the header (in Pub/Sub, the attribute) of that name: "ce_id", say. A message without
// it has no ID.
func EventIDFromHeader(name string) EventIDSource { return EventIDSource{namedHeader, name} }

// EventIDFromJSON takes the ID from the payload, a JSON object: the path "data.id" is the field id of the object data. It is a
// string or a number. A message without it has no ID.
func EventIDFromJSON(path string) EventIDSource { return EventIDSource{jsonPath, path} }

// EventIDFromOffset is Kafka's: see kafka.EventIDFromOffset.
func EventIDFromOffset() EventIDSource { return EventIDSource{kind: offset} }

// EventIDFromMessageID is Pub/Sub's: see pubsub.EventIDFromMessageID.
func EventIDFromMessageID() EventIDSource { return EventIDSource{kind: messageID} }

// String returns what a configuration file has: "" for the zero value.
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

// MarshalText writes the word that a configuration file has.
func (s EventIDSource) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads it.
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

// Validate reports what is wrong with the source, for a broker that gives its messages the IDs of own, one of
// EventIDFromOffset and EventIDFromMessageID, and has Millrace's in the header named reserved.
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

// Find returns the ID of a message: own is what stands where Millrace writes it, and byBroker makes an ID of what the broker
// knows. Such an ID does not replace the message's own, whose duplicates lie elsewhere in the broker. The error says what is
// missing and how to mend that.
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

// lookUp finds the string or number at the path.
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
		if strings.ContainsRune(text, utf8.RuneError) { // json.Unmarshal puts it in place of what is no text, and makes equals of IDs that differ there
			return "", fmt.Errorf("the payload's %q is no valid UTF-8", s.name)
		}
		return text, nil
	}
	if value[0] != '"' && json.Unmarshal(value, &number) == nil && number != "" {
		return number.String(), nil
	}
	return "", fmt.Errorf("the payload's %q is no string and no number, or empty", s.name)
}

// part names what a path leads to.
func part(path []string) string {
	if len(path) == 0 {
		return "it"
	}
	return fmt.Sprintf("%q", strings.Join(path, "."))
}
