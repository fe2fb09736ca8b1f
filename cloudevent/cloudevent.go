// Package cloudevent writes and reads CloudEvents 1.0 (https://cloudevents.io) as Watermill messages on Kafka and Pub/Sub, and as
// HTTP requests. It follows the specification's protocol bindings, in binary and in structured mode.
//
// A service of the framework needs only its Mode: Config.CloudEvents says which topics carry CloudEvents, and handlers read both
// modes.
package cloudevent

import (
	"errors"
	"fmt"
	"mime"
	"strings"

	"github.com/millrace-go/millrace/internal/enum"
)

// Mode is the form in which an event is written.
type Mode int

const (
	// Off writes no CloudEvent.
	Off Mode = iota
	// Binary writes the attributes as headers, and the data as the payload.
	Binary
	// Structured writes attributes and data as one JSON object, application/cloudevents+json.
	Structured
)

func (m Mode) String() string {
	switch m {
	case Off:
		return "Off"
	case Binary:
		return "Binary"
	case Structured:
		return "Structured"
	}
	return fmt.Sprintf("Mode(%d)", int(m))
}

// MarshalText returns the word for a configuration file: off, binary or structured.
func (m Mode) MarshalText() ([]byte, error) { return enum.Text(m, Off, Binary, Structured) }

// UnmarshalText parses that word.
func (m *Mode) UnmarshalText(word []byte) error { return enum.Read(m, word, Off, Binary, Structured) }

// Binding defines how a protocol names the headers of a message.
type Binding int

const (
	// Kafka names the headers ce_id.
	Kafka Binding = iota
	// PubSub names the attributes of a message ce-id.
	PubSub
)

func (b Binding) prefix() string {
	if b == PubSub {
		return dashed
	}
	return Prefix
}

// BindingOf returns the binding of a transport by its name: PubSub for "pubsub", otherwise Kafka.
func BindingOf(transport string) Binding {
	if transport == "pubsub" {
		return PubSub
	}
	return Kafka
}

const (
	// Prefix is the prefix of metadata entries that are attributes in Kafka's binding. Handlers of the framework get it on every
	// broker.
	Prefix = "ce_"
	// ContentType is the metadata entry for the data's content type.
	ContentType = "content-type"

	dashed       = "ce-"
	specVersion  = "1.0"
	family       = "application/cloudevents" // prefix of the content types of CloudEvents
	structured   = "application/cloudevents+json"
	partitionKey = "partitionkey"
)

// ErrNotCloudEvent is returned for a message or request that is not a CloudEvent: it has neither the attribute specversion
// nor a content type of CloudEvents.
var ErrNotCloudEvent = errors.New("not a CloudEvent: there is no header ce-specversion (Kafka: ce_specversion), and the content type is not " + structured)

// AttributeError refuses a CloudEvent because of an attribute or its data. The producer must send a valid one.
type AttributeError struct {
	Attribute string // such as "id", or "data"
	Problem   string // such as "is missing"
}

func (e *AttributeError) Error() string {
	return fmt.Sprintf("the CloudEvent's attribute %q %s", e.Attribute, e.Problem)
}

func wrong(attribute, format string, args ...any) error {
	return &AttributeError{attribute, fmt.Sprintf(format, args...)}
}

// isJSON reports whether data of the content type is JSON. Data without a content type is.
func isJSON(contentType string) bool {
	if contentType == "" {
		return true
	}
	media := mediaType(contentType)
	return media == "application/json" || media == "text/json" || strings.HasSuffix(media, "+json")
}

func mediaType(contentType string) string {
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		media, _, _ = strings.Cut(contentType, ";")
		media = strings.ToLower(strings.TrimSpace(media))
	}
	return media
}
