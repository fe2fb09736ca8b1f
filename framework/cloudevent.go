package framework

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/propagation"

	"github.com/millrace-go/millrace/cloudevent"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

// CloudEvents says how the events of topics are published: as Millrace's own, or as CloudEvents 1.0. Handlers read both on every
// topic, in binary and in structured mode.
//
// A CloudEvent has the event's ID as id, its key as subject and partitionkey, and the time of its ID as time. Its type is
// the event's; from version 2 on ".v2" follows it. Metadata "ce_NAME" of a message sets the attribute NAME.
//
// The claim recognizes the duplicates of another producer's event by source and id: see cloudevent.EventID.
type CloudEvents struct {
	// Mode is how events of the topics are published that Topics does not name. Default: Off, as Millrace's own.
	Mode cloudevent.Mode
	// Topics configures topics by their names. Those that are not named have Mode.
	Topics map[string]TopicCloudEvents
	// Source is the attribute source of what the service publishes: a URI, or a reference to one. Default: "/" and the
	// service's name.
	Source string
}

// TopicCloudEvents says how the events of a topic are published.
type TopicCloudEvents struct {
	// Mode is off, binary or structured. Default: Off.
	Mode cloudevent.Mode
}

func (c CloudEvents) of(topic string) cloudevent.Mode {
	if named, ok := c.Topics[topic]; ok {
		return named.Mode
	}
	return c.Mode
}

func (c CloudEvents) validate() error {
	var errs []error
	check := func(field string, mode cloudevent.Mode) {
		if mode < cloudevent.Off || mode > cloudevent.Structured {
			errs = append(errs, fmt.Errorf("Config.CloudEvents.%s is %s: want Off, Binary or Structured", field, mode))
		}
	}
	check("Mode", c.Mode)
	for _, topic := range slices.Sorted(maps.Keys(c.Topics)) {
		check(fmt.Sprintf("Topics[%q].Mode", topic), c.Topics[topic].Mode)
	}
	if cloudevent.CheckSource(c.Source) != nil {
		errs = append(errs, fmt.Errorf("Config.CloudEvents.Source is %q: want a URI or a reference to one, such as /orders", c.Source))
	}
	return errors.Join(errs...)
}

// versionedCloudEvent is the type of a CloudEvent with a version: OrderPlaced.v2.
var versionedCloudEvent = regexp.MustCompile(`^(.+)\.v([1-9][0-9]{0,5})$`)

// cloudEvent is the type of a CloudEvent of this kind. Version 1 has no suffix, unless the name itself ends as with one.
func (k kind) cloudEvent() string {
	if k.version == 1 && !versionedCloudEvent.MatchString(k.name) {
		return k.name
	}
	return k.name + ".v" + strconv.Itoa(k.version)
}

// setKind sets type and version by the type of a CloudEvent.
func setKind(metadata message.Metadata, of string) {
	name, version := of, "1"
	if m := versionedCloudEvent.FindStringSubmatch(of); m != nil {
		name, version = m[1], m[2]
	}
	metadata.Set(TypeMetadata, name)
	metadata.Set(VersionMetadata, version)
}

// encode makes a CloudEvent of a message that is published, if the topic carries them.
func (s *Service) encode(topic string, msg *message.Message) error {
	mode := s.cfg.CloudEvents.of(topic)
	if mode == cloudevent.Off || cloudevent.Is(msg) {
		return nil
	}
	e, err := s.cloudEvent(msg)
	if err != nil {
		return err
	}
	carried, err := cloudevent.ToMessage(e, cloudevent.BindingOf(s.cfg.Broker), mode)
	if err != nil {
		return err
	}
	maps.DeleteFunc(msg.Metadata, func(name, _ string) bool { return isOfCloudEvent(name) })
	maps.Copy(msg.Metadata, carried.Metadata)
	msg.Payload = carried.Payload
	return nil
}

// encodeTraced is encode for a message that does not go through the outbox, which would add the trace.
func (s *Service) encodeTraced(topic string, msg *message.Message) error {
	if s.cfg.CloudEvents.of(topic) != cloudevent.Off {
		s.telemetry.Propagator.Inject(msg.Context(), propagation.MapCarrier(msg.Metadata))
	}
	return s.encode(topic, msg)
}

// isOfCloudEvent reports whether the metadata entry is an attribute of a CloudEvent, or becomes one.
func isOfCloudEvent(name string) bool {
	return name == TypeMetadata || name == VersionMetadata || strings.EqualFold(name, cloudevent.ContentType) ||
		strings.HasPrefix(name, "ce_") || strings.HasPrefix(name, "ce-")
}

func (s *Service) cloudEvent(msg *message.Message) (event.Event, error) {
	e := event.New()
	k, err := kindFrom(msg.Metadata)
	if err != nil {
		return e, err
	}
	if k.name == "" {
		return e, fmt.Errorf("a CloudEvent has a type, and this event has none: give its topic the option EventType, or the message the metadata %s", TypeMetadata)
	}
	e.SetID(msg.UUID)
	e.SetSource(s.cfg.CloudEvents.Source)
	e.SetType(k.cloudEvent())
	e.SetTime(happened(msg.UUID))
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
	contentType := msg.Metadata[cloudevent.ContentType]
	if contentType == "" && json.Valid(msg.Payload) {
		contentType = event.ApplicationJSON
	}
	e.SetDataContentType(cmp.Or(contentType, "application/octet-stream"))
	e.DataEncoded = msg.Payload
	return e, nil
}

// minted are attributes of each event's own. A message may have those of an event that its metadata come from.
var minted = []string{"specversion", "id", "source", "type", "time", "partitionkey", "traceparent", "tracestate"}

// happened is the time in an event's ID; now if it has none.
func happened(id string) time.Time {
	parsed, err := uuid.Parse(id)
	if err != nil || parsed.Version() != 7 {
		return time.Now().UTC()
	}
	return time.Unix(parsed.Time().UnixTime()).UTC()
}

// eventID is what a claim recognizes the duplicates of a message by.
func eventID(msg *message.Message) (string, error) {
	if !cloudevent.Is(msg) {
		return msg.UUID, nil
	}
	return cloudevent.EventID(msg)
}

// unpacking gives fn what a CloudEvent carries. The claim outside of it keeps the message as it came.
func (s *Service) unpacking(fn message.NoPublishHandlerFunc) message.NoPublishHandlerFunc {
	if fn == nil {
		return nil
	}
	return func(msg *message.Message) error {
		unpacked, err := unpack(msg)
		if err != nil {
			return claim.Permanent(err)
		}
		if unpacked != msg {
			unpacked.SetContext(context.WithValue(msg.Context(), contextKey{}, scope{service: s, msg: unpacked}))
		}
		return fn(unpacked)
	}
}

// unpack returns a message with the data of a CloudEvent as its payload, and the attributes as its metadata. It returns any other message as
// it is.
func unpack(msg *message.Message) (*message.Message, error) {
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
	// The data is what is left, so nobody takes this message for a CloudEvent.
	delete(attributes, cloudevent.Prefix+"specversion")
	unpacked := message.NewMessage(id, e.Data())
	for name, value := range msg.Metadata {
		if !isOfCloudEvent(name) {
			unpacked.Metadata.Set(name, value)
		}
	}
	maps.Copy(unpacked.Metadata, attributes)
	setKind(unpacked.Metadata, e.Type())
	return unpacked, nil
}

// AcceptCloudEvents returns a handler for HTTP requests that carry a CloudEvent in binary or structured mode. It publishes the event to the
// topic in a transaction of its own, as a CloudEvent with the same attributes: in the topic's mode, or binary where that is off. The
// event's key is the attribute partitionkey, else subject. The claims of consumers recognize an event that is sent twice.
//
//	svc.HTTP().Handle("POST /events", authenticated(svc.AcceptCloudEvents("orders.placed")))
//
// It answers 202 when the event is committed, and 400 or 415 with the reason if the request is not a valid CloudEvent. Anybody who can reach
// it can publish.
func (s *Service) AcceptCloudEvents(topic string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(cmp.Or(s.transport.Features().Limits.MessageBytes, transport.DefaultLimits.MessageBytes))))
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			http.Error(w, fmt.Sprintf("the event is larger than %d bytes", tooLarge.Limit), http.StatusRequestEntityTooLarge)
			return
		}
		if err != nil {
			http.Error(w, "read the event: "+err.Error(), http.StatusBadRequest)
			return
		}
		msg, err := s.accepted(topic, r.Header, body)
		if err == nil {
			err = s.Tx(r.Context(), func(ctx context.Context, _ pgx.Tx) error {
				msg.SetContext(ctx)
				return s.outbox.Publish(topic, msg)
			})
		} else {
			err = errors.Join(outbox.ErrInvalidMessage, err)
		}
		switch {
		case errors.Is(err, cloudevent.ErrNotCloudEvent):
			http.Error(w, err.Error(), http.StatusUnsupportedMediaType)
		case errors.Is(err, outbox.ErrInvalidMessage):
			http.Error(w, err.Error(), http.StatusBadRequest)
		case err != nil:
			s.log.ErrorContext(r.Context(), "CloudEvent of a request could not be published", "topic", topic, "error", err)
			http.Error(w, "the event could not be stored: send it again", http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	})
}

// accepted is the message for the CloudEvent of a request.
func (s *Service) accepted(topic string, header http.Header, body []byte) (*message.Message, error) {
	e, err := cloudevent.FromHTTP(header, body)
	if err != nil {
		return nil, err
	}
	mode := cmp.Or(s.cfg.CloudEvents.of(topic), cloudevent.Binary)
	msg, err := cloudevent.ToMessage(e, cloudevent.BindingOf(s.cfg.Broker), mode)
	if err != nil {
		return nil, err
	}
	if _, err := cloudevent.FromMessage(msg); err != nil { // no handler could read it: its time has a year of five digits in UTC, say
		return nil, err
	}
	msg.UUID = cloudevent.Identity(e.Source(), e.ID())
	transport.SetKey(msg, cloudevent.Key(e))
	return msg, nil
}
