package cloudevent

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
)

// Is reports whether a message claims to be a CloudEvent. Its headers may use the names of either binding, on any broker.
func Is(msg *message.Message) bool {
	return prefixOf(msg.Metadata) != "" || strings.HasPrefix(mediaType(contentType(msg.Metadata)), family)
}

// prefixOf returns the prefix of the attributes' names, or "" if there are none.
func prefixOf(metadata message.Metadata) string {
	for _, prefix := range []string{Prefix, dashed} {
		if _, ok := metadata[prefix+"specversion"]; ok {
			return prefix
		}
	}
	return ""
}

func contentType(metadata message.Metadata) string {
	if found, ok := metadata[ContentType]; ok {
		return found
	}
	return metadata["Content-Type"]
}

// FromMessage reads the CloudEvent of a message, in either mode. The error is ErrNotCloudEvent if the message is not a CloudEvent.
// If the event is not valid, the error is an AttributeError, or describes the error in the JSON.
func FromMessage(msg *message.Message) (event.Event, error) {
	r, err := parse(msg)
	if err != nil {
		return event.Event{}, err
	}
	return r.event()
}

// maxID is the maximum length of an event ID in bytes.
const maxID = 255

// EventID returns the ID that a claim uses for a CloudEvent. For an event that Millrace has published, this is the attribute id,
// which is also the message's ID. The id of another producer is unique only together with the source. So the ID is the source, a
// space and the id, or a hash of them if they are longer than 255 bytes.
func EventID(msg *message.Message) (string, error) {
	r, err := parse(msg)
	if err != nil {
		return "", err
	}
	c := checked{raw: r}
	id, source := c.text("id", true), c.source()
	switch {
	case c.err != nil:
		return "", c.err
	case id == msg.UUID:
		return id, nil
	}
	return Identity(source, id), nil
}

// Identity returns the event ID of a CloudEvent of another producer: see EventID.
func Identity(source, id string) string {
	whole := source + " " + id // a source has no space
	if len(whole) > maxID {
		return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(whole)))
	}
	return whole
}

// raw is a CloudEvent with unchecked attributes. In binary mode all attributes are strings.
type raw struct {
	attributes map[string]any
	data       []byte
	base64     bool // the data came as data_base64
}

// parse is strict about JSON, but does not check attributes. The SDK's own reader accepts invalid JSON, and panics if data_base64
// is not a string.
func parse(msg *message.Message) (raw, error) {
	of := contentType(msg.Metadata)
	media := mediaType(of)
	if media == structured {
		return parseStructured(msg.Payload)
	}
	if strings.HasPrefix(media, family) {
		return raw{}, fmt.Errorf("the CloudEvent's content type is %q: want %s, or attributes in headers", of, structured)
	}
	prefix := prefixOf(msg.Metadata)
	if prefix == "" {
		return raw{}, ErrNotCloudEvent
	}
	r := raw{attributes: map[string]any{}, data: msg.Payload}
	for name, value := range msg.Metadata {
		if attribute, ok := strings.CutPrefix(name, prefix); ok && value != "" {
			r.attributes[attribute] = value
		}
	}
	delete(r.attributes, "datacontenttype") // the binding uses the content type
	if of != "" {
		r.attributes["datacontenttype"] = of
	}
	return r, r.checkText()
}

// checkText refuses strings that PostgreSQL cannot store.
func (r raw) checkText() error {
	for _, name := range slices.Sorted(maps.Keys(r.attributes)) {
		if value, _ := r.attributes[name].(string); !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
			return wrong(name, "is %.100q: want UTF-8 without NUL", value)
		}
	}
	return nil
}

func parseStructured(payload []byte) (raw, error) {
	if !utf8.Valid(payload) { // encoding/json would replace invalid bytes: see paired
		return raw{}, errors.New("the structured CloudEvent is not UTF-8")
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(payload, &object); err != nil {
		return raw{}, fmt.Errorf("the structured CloudEvent is no JSON object: %w", err)
	}
	if object == nil {
		return raw{}, errors.New("the structured CloudEvent is no JSON object: it is null")
	}
	r := raw{attributes: map[string]any{}}
	for name, value := range object {
		if name == "data" || name == "data_base64" || string(value) == "null" {
			continue
		}
		if !paired.Match(value) {
			return raw{}, wrong(name, "is %.40s: want text without halves of surrogate pairs", value)
		}
		var ok bool
		if r.attributes[name], ok = valueOf(value); !ok {
			return raw{}, wrong(name, "is %.40s: want a string, a boolean or an integer of 32 bits", value)
		}
	}
	if err := r.checkText(); err != nil {
		return raw{}, err
	}
	return r, r.readData(object["data"], object["data_base64"])
}

// paired matches JSON without escapes of half a surrogate pair. encoding/json would replace them, so different IDs would become
// equal.
var paired = regexp.MustCompile(`^(?:[^\\]|\\[^u]|\\u(?:[^dD]...|[dD][0-7]..|[dD][89abAB]..\\u[dD][c-fC-F]..))*$`)

// valueOf reads the value of an attribute: a string, a boolean or a 32-bit integer.
func valueOf(value json.RawMessage) (any, bool) {
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.UseNumber()
	var decoded any
	if decoder.Decode(&decoded) != nil {
		return nil, false
	}
	switch v := decoded.(type) {
	case string, bool:
		return v, true
	case json.Number:
		n, err := strconv.ParseInt(v.String(), 10, 32)
		return int32(n), err == nil
	}
	return nil, false
}

func (r *raw) readData(data, encoded json.RawMessage) error {
	switch {
	case data != nil && encoded != nil:
		return wrong("data_base64", "stands beside data: want one of them")
	case encoded != nil:
		if json.Unmarshal(encoded, &r.data) != nil || encoded[0] != '"' {
			return wrong("data_base64", "is %.40s: want a string of base64", encoded)
		}
		r.base64 = true
		return nil
	}
	contentType, _ := r.attributes["datacontenttype"].(string)
	if data == nil || isJSON(contentType) {
		r.data = data
		return nil
	}
	var text string
	if data[0] != '"' || json.Unmarshal(data, &text) != nil {
		return wrong("data", "is %.40s: want a string, as datacontenttype is %q", data, contentType)
	}
	r.data = []byte(text)
	return nil
}

// event checks all attributes.
func (r raw) event() (event.Event, error) {
	c := checked{raw: r}
	if version := c.text("specversion", true); version != specVersion {
		c.fail("specversion", "is %q: want %q", version, specVersion)
	}
	attributes := event.EventContextV1{ID: c.text("id", true), Source: types.URIRef{URL: c.sourceURL()}, Type: c.text("type", true)}
	if contentType := c.text("datacontenttype", false); contentType != "" {
		if _, _, err := mime.ParseMediaType(contentType); err != nil {
			c.fail("datacontenttype", "is %.100q: want a media type, such as application/json", contentType)
		}
		attributes.DataContentType = &contentType
	}
	if schema := c.text("dataschema", false); schema != "" {
		parsed, err := url.Parse(schema)
		if err != nil {
			c.fail("dataschema", "is %.100q: want a URI", schema)
		} else {
			attributes.DataSchema = &types.URI{URL: asWritten(schema, *parsed)}
		}
	}
	if subject := c.text("subject", false); subject != "" {
		attributes.Subject = &subject
	}
	if moment := c.text("time", false); moment != "" {
		at, err := time.Parse(time.RFC3339, moment)
		if err != nil {
			c.fail("time", "is %.100q: want a time of RFC 3339, such as 2006-01-02T15:04:05Z", moment)
		}
		attributes.Time = &types.Timestamp{Time: at}
	}
	for _, name := range slices.Sorted(maps.Keys(r.attributes)) {
		if slices.Contains(defined, name) {
			continue
		}
		if name == dataMember {
			c.fail(name, "is an extension: want another name, because it is the data's in structured mode")
		}
		if name == "" || strings.Trim(name, lowerCase) != "" {
			c.fail(name, "has a wrong name: want lower-case letters and digits")
		} else if err := attributes.SetExtension(name, r.attributes[name]); err != nil {
			c.fail(name, "is wrong: %v", err)
		}
	}
	if c.err != nil {
		return event.Event{}, c.err
	}
	e := event.Event{Context: &attributes, DataEncoded: r.data, DataBase64: r.base64}
	return e, validate(e)
}

// validate reports the SDK's error, if any.
func validate(e event.Event) error {
	var invalid event.ValidationError
	if !errors.As(e.Validate(), &invalid) {
		return nil
	}
	name := slices.Min(slices.Collect(maps.Keys(invalid)))
	return wrong(name, "is wrong: %v", invalid[name])
}

// defined are the attributes that are not extensions.
var defined = []string{"specversion", "id", "source", "type", "datacontenttype", "dataschema", "subject", "time"}

const lowerCase = "abcdefghijklmnopqrstuvwxyz0123456789"

// checked reads attributes and keeps the first error.
type checked struct {
	raw
	err error
}

func (c *checked) fail(attribute, format string, args ...any) {
	if c.err == nil {
		c.err = wrong(attribute, format, args...)
	}
}

// text returns an attribute that must be a string.
func (c *checked) text(name string, required bool) string {
	value, ok := c.attributes[name]
	text, isText := value.(string)
	switch {
	case ok && !isText:
		c.fail(name, "is %v: want a string", value)
	case required && strings.TrimSpace(text) == "":
		c.fail(name, "is missing or empty")
	}
	return text
}

func (c *checked) source() string {
	c.sourceURL()
	return c.text("source", false)
}

func (c *checked) sourceURL() url.URL {
	source := c.text("source", true)
	parsed, err := parseSource(source)
	if c.err == nil {
		c.err = err
	}
	return parsed
}

// CheckSource returns an error if the value is not valid for the attribute source.
func CheckSource(source string) error {
	c := checked{raw: raw{attributes: map[string]any{"source": source}}}
	c.source()
	return c.err
}

// parseSource refuses spaces, because Identity relies on that.
func parseSource(source string) (url.URL, error) {
	parsed, err := url.Parse(source)
	if err != nil || strings.ContainsAny(source, " \t\r\n") {
		return url.URL{}, wrong("source", "is %.100q: want a URI or a reference to one, such as /orders", source)
	}
	return asWritten(source, *parsed), nil
}

// asWritten returns a URL whose String method returns text. parsed is the parsed text.
func asWritten(text string, parsed url.URL) url.URL {
	switch {
	case parsed.String() == text:
		return parsed
	case parsed.Scheme == "":
		return url.URL{Opaque: text}
	}
	return url.URL{Scheme: text[:len(parsed.Scheme)], Opaque: text[len(parsed.Scheme)+1:]}
}

// Key returns the ordering key of an event: the extension partitionkey, otherwise the subject.
func Key(e event.Event) string {
	if key, ok := e.Extensions()[partitionKey].(string); ok && key != "" {
		return key
	}
	return e.Subject()
}
