package pubsub

import (
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/placeid"
	"github.com/millrace-go/millrace/transport"
)

// EventIDFromAttribute takes the event's ID from the attribute of that name, such as "ce-id" of CloudEvents. Messages without it
// become dead letters. The value is the ID as it is, so the publisher must give each event one of its own, and the same when
// it sends the event again. A file has header:NAME.
func EventIDFromAttribute(name string) transport.EventIDSource {
	return transport.EventIDFromHeader(name)
}

// EventIDFromJSON is EventIDFromAttribute for a field of the payload, a JSON object: "data.id" is the field id of the object
// data. It is a string or a number. It must name the event: the ID of an order, say, would make one event of all that happens
// to the order.
func EventIDFromJSON(path string) transport.EventIDSource { return transport.EventIDFromJSON(path) }

// EventIDFromMessageID is for publishers that send no ID: topic, message ID and publish time are the identity, which each
// redelivery has. What a publisher sends twice are two events, and so is what Pub/Sub forwards to another topic. A message
// that carries the ID that Millrace or watermill-googlecloud writes keeps that ID.
func EventIDFromMessageID() transport.EventIDSource { return transport.EventIDFromMessageID() }

// The names of an Origin.
const (
	originTopic     = "topic"
	originMessageID = "message_id"
	originPublished = "publish_time" // RFC 3339 with milliseconds
	originID        = "id"           // what the attribute of Millrace's ID has
)

const originTime = "2006-01-02T15:04:05.000Z"

// place is what Pub/Sub knows a message by.
type place struct {
	topic, messageID string
	published        time.Time
}

func placeOf(topic string, m *pubsub.Message) place { return place{topic, m.ID, m.PublishTime} }

func (p place) eventID() string {
	return placeid.Of(fmt.Sprintf("pubsub:%s/%s", p.topic, p.messageID), p.published)
}

// placeIn is the place that an origin tells.
func placeIn(o transport.Origin) place {
	published, _ := time.Parse(originTime, o[originPublished]) // it is missing where it was no plausible time
	return place{o[originTopic], o[originMessageID], published}
}

// Origin implements transport.Originated.
func (d *delivery) Origin() transport.Origin {
	p := placeOf(d.topic, d.received)
	o := transport.Origin{originTopic: p.topic, originMessageID: p.messageID}
	if placeid.Plausible(p.published) {
		o[originPublished] = p.published.UTC().Format(originTime)
	}
	if own := d.received.Attributes[idAttribute]; own != "" {
		o[originID] = own
	}
	return o
}

// EventIDError implements transport.Originated.
func (d *delivery) EventIDError() error { return d.unidentified }

// identify gives the message the ID of its event, none with an error.
func (c SubscriptionConfig) identify(msg *message.Message, p place) (err error) {
	msg.UUID, err = c.EventID.Find(msg.UUID, msg, p.eventID)
	return c.noEventID(err)
}

// noEventID says what to do where a message has no event ID.
func (SubscriptionConfig) noEventID(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: set SubscriptionConfig.EventID (pubsub.subscription.event_id or pubsub.consumers.NAME.event_id) "+
		"to where the publisher puts it: header:NAME (an attribute), json:PATH or message_id; then replay the event", err)
}

// FindEventID implements transport.EventIDFinder.
func (s *subscriber) FindEventID(msg *message.Message, origin transport.Origin) (string, error) {
	c := s.transport.config.subscription(s.config.Consumer)
	if c.EventID == EventIDFromMessageID() && origin[originMessageID] == "" {
		return "", c.noEventID(errors.New("its message ID was not kept"))
	}
	found := &message.Message{UUID: origin[originID], Metadata: msg.Metadata, Payload: msg.Payload}
	err := c.identify(found, placeIn(origin))
	return found.UUID, err
}
