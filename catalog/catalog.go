// Package catalog describes the events that a service publishes and handles, as an AsyncAPI 3.0 document, and finds out what a
// change of that document breaks. framework.Service.Catalog creates the document. The command "millrace catalog" prints and
// compares documents.
package catalog

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/invopop/jsonschema"
	"go.yaml.in/yaml/v4"
)

// Document is the part of an AsyncAPI 3.0 document that a catalog uses.
type Document struct {
	AsyncAPI   string               `json:"asyncapi"`
	Info       Info                 `json:"info"`
	Channels   map[string]Channel   `json:"channels"`
	Operations map[string]Operation `json:"operations"`
	Components Components           `json:"components"`
}

// Info names the service.
type Info struct {
	Title   string `json:"title"`
	Version string `json:"version"`
}

// Channel is a topic.
type Channel struct {
	Address  string             `json:"address"`
	Mode     string             `json:"x-cloudevents,omitempty"` // binary or structured
	Messages map[string]Message `json:"messages"`
}

// Message is one version of an event type.
type Message struct {
	Name        string          `json:"name"`
	ContentType string          `json:"contentType"`
	Payload     json.RawMessage `json:"payload"` // a JSON schema
	Type        string          `json:"x-millrace-type,omitempty"`
	Version     int             `json:"x-millrace-version"`
}

// Operation says that the service publishes to a topic or handles it.
type Operation struct {
	Action   string `json:"action"` // "send" or "receive"
	Channel  Ref    `json:"channel"`
	Messages []Ref  `json:"messages"`
	Handler  string `json:"x-millrace-handler,omitempty"` // the handler's name, for "receive"
}

// Ref refers to another part of the document.
type Ref struct {
	Ref string `json:"$ref"`
}

// Components has the schemas that payloads reference.
type Components struct {
	Schemas map[string]json.RawMessage `json:"schemas,omitempty"`
}

// Event is one version of an event type, as a service knows it.
type Event struct {
	Type     string // "" for any
	Version  int
	Go       reflect.Type // the type of the decoded payload
	Protobuf string       // the message's name, "" for JSON
}

const (
	version = "3.0.0" // of AsyncAPI
	send    = "send"
	receive = "receive"
)

// Builder builds a Document. It is not safe for concurrent use.
type Builder struct {
	document Document
	names    map[reflect.Type]string // of schemas
	taken    map[string]bool
}

// New returns the builder of a service's catalog.
func New(service string) *Builder {
	return &Builder{
		document: Document{
			AsyncAPI: version, Info: Info{Title: service, Version: "1"}, Channels: map[string]Channel{}, Operations: map[string]Operation{},
			Components: Components{Schemas: map[string]json.RawMessage{}},
		},
		names: map[reflect.Type]string{}, taken: map[string]bool{},
	}
}

// Publishes records that the service publishes the event to the topic.
func (b *Builder) Publishes(topic string, e Event) error {
	ref, err := b.message(topic, send, e)
	if err != nil {
		return err
	}
	name := send + "." + topic
	o := b.document.Operations[name]
	o.Action, o.Channel = send, channelRef(topic)
	if !slices.Contains(o.Messages, ref) {
		o.Messages = append(o.Messages, ref)
	}
	b.document.Operations[name] = o
	return nil
}

// Handles records that the handler handles the events of the topic.
func (b *Builder) Handles(handler, topic string, events ...Event) error {
	o := Operation{Action: receive, Channel: channelRef(topic), Handler: handler, Messages: []Ref{}}
	for _, e := range events {
		ref, err := b.message(topic, handler, e)
		if err != nil {
			return err
		}
		o.Messages = append(o.Messages, ref)
	}
	b.document.Operations[receive+"."+handler] = o
	return nil
}

// CloudEvents records that the service publishes to the topic in this mode of CloudEvents.
func (b *Builder) CloudEvents(topic, mode string) {
	if channel, ok := b.document.Channels[topic]; ok {
		channel.Mode = mode
		b.document.Channels[topic] = channel
	}
}

// Document returns the document built so far.
func (b *Builder) Document() *Document { return &b.document }

// message adds the message to its topic. Publisher and handlers share a message if their schemas are equal.
func (b *Builder) message(topic, by string, e Event) (Ref, error) {
	channel, ok := b.document.Channels[topic]
	if !ok {
		channel = Channel{Address: topic, Messages: map[string]Message{}}
		b.document.Channels[topic] = channel
	}
	m := Message{Name: e.name(), ContentType: "application/json", Type: e.Type, Version: e.Version}
	var err error
	if m.Payload, err = b.schema(e); err != nil {
		return Ref{}, fmt.Errorf("describe %s of topic %q: %w", m.Name, topic, err)
	}
	if e.Protobuf != "" {
		m.ContentType = "application/protobuf"
	}
	key := m.Name
	if other, ok := channel.Messages[key]; ok && !bytes.Equal(other.Payload, m.Payload) {
		key += "." + by
	}
	channel.Messages[key] = m
	return Ref{"#/channels/" + escape(topic) + "/messages/" + escape(key)}, nil
}

func (e Event) name() string {
	if e.Type == "" {
		return "any"
	}
	return e.Type + ".v" + strconv.Itoa(e.Version)
}

func channelRef(topic string) Ref { return Ref{"#/channels/" + escape(topic)} }

// escape escapes a key for a JSON pointer.
func escape(key string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(key) }

func unescape(part string) string { return strings.NewReplacer("~1", "/", "~0", "~").Replace(part) }

// schema returns the schema of an event's payload. The schemas of structs in it become components.
func (b *Builder) schema(e Event) (json.RawMessage, error) {
	if e.Protobuf != "" {
		return json.Marshal(map[string]string{"type": "object", "title": e.Protobuf}) // its .proto file has the rest
	}
	if e.Type == "" {
		return json.RawMessage("{}"), nil
	}
	reflector := jsonschema.Reflector{Anonymous: true, AllowAdditionalProperties: true, Namer: b.name, Mapper: written}
	schema := reflector.ReflectFromType(e.Go)
	schema.Version = ""
	for name, definition := range schema.Definitions {
		text, err := pointing(definition)
		if err != nil {
			return nil, err
		}
		b.document.Components.Schemas[name] = text
	}
	schema.Definitions = nil
	return pointing(schema)
}

// written returns the schema of a type that encodes itself, because encoding/json does not read its fields. It returns nil for
// other types.
func written(t reflect.Type) *jsonschema.Schema {
	is := func(kind reflect.Type) bool { return t.Implements(kind) || reflect.PointerTo(t).Implements(kind) }
	switch {
	case t == reflect.TypeFor[time.Time](), t == reflect.TypeFor[json.RawMessage](), is(reflect.TypeFor[interface{ JSONSchema() *jsonschema.Schema }]()):
		return nil // the library supports these
	case is(reflect.TypeFor[json.Marshaler]()):
		return &jsonschema.Schema{Title: t.String()}
	case is(reflect.TypeFor[encoding.TextMarshaler]()):
		return &jsonschema.Schema{Type: "string"}
	}
	return nil
}

// pointing returns a schema whose references point to components.
func pointing(schema *jsonschema.Schema) (json.RawMessage, error) {
	text, err := json.Marshal(schema)
	return bytes.ReplaceAll(text, []byte(`"$ref":"#/$defs/`), []byte(`"$ref":"`+components)), err
}

const components = "#/components/schemas/"

var noName = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// name names the schema of a type. Types with the same name in two packages get different names.
func (b *Builder) name(t reflect.Type) string {
	if name, ok := b.names[t]; ok {
		return name
	}
	base := noName.ReplaceAllString(t.Name(), "_")
	name := base
	for n := 2; b.taken[name]; n++ {
		name = base + "_" + strconv.Itoa(n)
	}
	b.names[t], b.taken[name] = name, true
	return name
}

// Parse reads a document in JSON or YAML.
func Parse(text []byte) (*Document, error) {
	var tree map[string]any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return nil, fmt.Errorf("read the catalog: %w", err)
	}
	asJSON, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("read the catalog: %w", err)
	}
	var d Document
	if err := json.Unmarshal(asJSON, &d); err != nil {
		return nil, fmt.Errorf("read the catalog: %w", err)
	}
	if !strings.HasPrefix(d.AsyncAPI, "3.") {
		return nil, fmt.Errorf("read the catalog: asyncapi is %q: want a document of AsyncAPI 3, as a service serves it at /catalog", d.AsyncAPI)
	}
	var errs []error
	for name, o := range d.Operations {
		if _, ok := d.Channels[o.Channel.target()]; !ok {
			errs = append(errs, fmt.Errorf("operation %q refers to the channel %q, which is not there", name, o.Channel.Ref))
			continue
		}
		for _, ref := range o.Messages {
			if _, ok := d.Channels[o.Channel.target()].Messages[ref.target()]; !ok {
				errs = append(errs, fmt.Errorf("operation %q refers to the message %q, which is not there", name, ref.Ref))
			}
		}
	}
	return &d, errors.Join(errs...)
}

// ChannelOf returns the channel of an operation.
func (d *Document) ChannelOf(o Operation) Channel { return d.Channels[o.Channel.target()] }

// MessagesOf returns the messages of an operation.
func (d *Document) MessagesOf(o Operation) (all []Message) {
	for _, ref := range o.Messages {
		all = append(all, d.ChannelOf(o).Messages[ref.target()])
	}
	return all
}

// target returns the last part of a reference, which is the key.
func (r Ref) target() string { return unescape(r.Ref[strings.LastIndexByte(r.Ref, '/')+1:]) }
