package framework

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/propagation"

	"github.com/millrace-go/millrace/cloudevent"
	"github.com/millrace-go/millrace/framework/internal/cloud"
	"github.com/millrace-go/millrace/framework/internal/web"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/transport"
)

// CloudEvents configures how the service publishes the events of topics: as Millrace's own, or as CloudEvents 1.0. Handlers read
// both on every topic, in binary and in structured mode.
//
// A CloudEvent has the event's ID as id, its key as subject and partitionkey, and the time of its ID as time. Its type is
// the event's; from version 2 on ".v2" follows it. Metadata "ce_NAME" of a message sets the attribute NAME.
//
// The claim recognizes the duplicates of another producer's event by source and id: see cloudevent.EventID.
type CloudEvents struct {
	// Mode is how events are published to topics that are not in Topics. Default: Off, as Millrace's own.
	Mode cloudevent.Mode
	// Topics configures topics by their names. Other topics have Mode.
	Topics map[string]TopicCloudEvents
	// Source is the attribute source of the events that the service publishes: a URI, or a reference to one. Default: "/" and the
	// service's name.
	Source string
}

// TopicCloudEvents configures how the events of a topic are published.
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

func (s *Service) codec() cloud.Codec {
	return cloud.Codec{Source: s.cfg.CloudEvents.Source, Binding: cloudevent.BindingOf(s.cfg.Broker)}
}

// encode turns a message into a CloudEvent, if the topic carries them.
func (s *Service) encode(topic string, msg *message.Message) error {
	return s.codec().Encode(s.cfg.CloudEvents.of(topic), msg)
}

// encodeTraced is encode for a message that bypasses the outbox. The outbox would add the trace; here encodeTraced does.
func (s *Service) encodeTraced(topic string, msg *message.Message) error {
	if s.cfg.CloudEvents.of(topic) != cloudevent.Off {
		s.telemetry.Propagator.Inject(msg.Context(), propagation.MapCarrier(msg.Metadata))
	}
	return s.encode(topic, msg)
}

// unpacking calls fn with the data and the attributes of a CloudEvent. The claim is outside of it, so it stores the message as it
// came.
func (s *Service) unpacking(fn message.NoPublishHandlerFunc) message.NoPublishHandlerFunc {
	if fn == nil {
		return nil
	}
	return func(msg *message.Message) error {
		unpacked, err := cloud.Unpack(msg)
		if err != nil {
			return claim.Permanent(err)
		}
		if unpacked != msg {
			unpacked.SetContext(context.WithValue(msg.Context(), contextKey{}, scope{service: s, msg: unpacked}))
		}
		return fn(unpacked)
	}
}

// AcceptCloudEvents returns a handler for HTTP requests that carry a CloudEvent in binary or structured mode. It publishes the event to the
// topic in a transaction of its own, as a CloudEvent with the same attributes: in the topic's mode, or binary where that is off. The
// event's key is the attribute partitionkey, else subject. The claims of consumers recognize an event that is sent twice.
//
//	svc.HTTP().Handle("POST /events", authenticated(svc.AcceptCloudEvents("orders.placed")))
//
// It answers 202 when the event is committed, and 400 or 415 with the reason if the request is not a valid CloudEvent. Anybody who can reach
// it can publish. Without PostgreSQL it answers 501.
func (s *Service) AcceptCloudEvents(topic string) http.Handler {
	if s.bare {
		return web.NotImplemented("events are stored in the database", ErrNoPostgres)
	}
	return cloud.Handler{
		Codec: s.codec(), Topic: topic, Mode: cmp.Or(s.cfg.CloudEvents.of(topic), cloudevent.Binary),
		MaxBytes: cmp.Or(s.transport.Features().Limits.MessageBytes, transport.DefaultLimits.MessageBytes), Log: s.log,
		Publish: func(ctx context.Context, msg *message.Message) error {
			return s.Tx(ctx, func(ctx context.Context, _ pgx.Tx) error {
				msg.SetContext(ctx)
				return s.outbox.Publish(topic, msg)
			})
		},
	}
}
