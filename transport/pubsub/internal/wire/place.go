package wire

import (
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/placeid"
	"github.com/millrace-go/millrace/transport"
)

// The names of an Origin.
const (
	originTopic     = "topic"
	originMessageID = "message_id"
	originPublished = "publish_time" // RFC 3339 with milliseconds
	originID        = "id"           // the value of Millrace's ID attribute
)

const originTime = "2006-01-02T15:04:05.000Z"

// Place identifies a message in Pub/Sub.
type Place struct {
	topic, messageID string
	published        time.Time
}

// PlaceOf returns the place of a message that came from the topic.
func PlaceOf(topic string, m *pubsub.Message) Place { return Place{topic, m.ID, m.PublishTime} }

func (p Place) eventID() string {
	return placeid.Of(fmt.Sprintf("pubsub:%s/%s", p.topic, p.messageID), p.published)
}

// placeIn returns the place in an origin.
func placeIn(o transport.Origin) Place {
	published, _ := time.Parse(originTime, o[originPublished]) // missing if it was not a plausible time
	return Place{o[originTopic], o[originMessageID], published}
}

// OriginOf returns where a message from the topic was published, and the ID that it carries.
func OriginOf(topic string, m *pubsub.Message) transport.Origin {
	p := PlaceOf(topic, m)
	o := transport.Origin{originTopic: p.topic, originMessageID: p.messageID}
	if placeid.Plausible(p.published) {
		o[originPublished] = p.published.UTC().Format(originTime)
	}
	if own := m.Attributes[IDAttribute]; own != "" {
		o[originID] = own
	}
	return o
}

// Identify sets the message's ID to its event's ID. On an error the ID is empty.
func Identify(source transport.EventIDSource, msg *message.Message, p Place) (err error) {
	msg.UUID, err = source.Find(msg.UUID, msg, p.eventID)
	return noEventID(err)
}

// noEventID adds what to do if a message has no event ID.
func noEventID(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: set SubscriptionConfig.EventID (pubsub.subscription.event_id or pubsub.consumers.NAME.event_id) "+
		"to where the publisher puts it: header:NAME (an attribute), json:PATH or message_id; then replay the event", err)
}

// FindEventID returns the ID of an event whose message was kept with its origin.
func FindEventID(source transport.EventIDSource, msg *message.Message, origin transport.Origin) (string, error) {
	if source == transport.EventIDFromMessageID() && origin[originMessageID] == "" {
		return "", noEventID(errors.New("its message ID was not kept"))
	}
	found := &message.Message{UUID: origin[originID], Metadata: msg.Metadata, Payload: msg.Payload}
	err := Identify(source, found, placeIn(origin))
	return found.UUID, err
}
