package wire

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/placeid"
	"github.com/millrace-go/millrace/transport"
)

// The names of an Origin.
const (
	originTopic     = transport.OriginTopic
	originPartition = "partition"
	originOffset    = "offset"
	originTimestamp = "timestamp" // RFC 3339 with milliseconds; missing if the timestamp is not plausible
	originID        = "id"        // the value of Millrace's ID header, if the event's ID comes from elsewhere
)

const originTime = "2006-01-02T15:04:05.000Z"

// Place is the position of a record.
type Place struct {
	topic     string
	partition int32
	offset    int64
	at        time.Time // its timestamp
}

// PlaceOf returns the place of a record.
func PlaceOf(m *sarama.ConsumerMessage) Place {
	return Place{m.Topic, m.Partition, m.Offset, m.Timestamp}
}

func (p Place) eventID() string {
	return placeid.Of(fmt.Sprintf("kafka:%s/%d/%d", p.topic, p.partition, p.offset), p.at)
}

func (p Place) origin() transport.Origin {
	o := transport.Origin{
		originTopic: p.topic, originPartition: strconv.Itoa(int(p.partition)), originOffset: strconv.FormatInt(p.offset, 10),
	}
	if placeid.Plausible(p.at) {
		o[originTimestamp] = p.at.UTC().Format(originTime)
	}
	return o
}

// placeIn returns the place in an origin.
func placeIn(o transport.Origin) (p Place, err error) {
	p.topic = o[originTopic]
	partition, err := strconv.ParseInt(o[originPartition], 10, 32)
	if err == nil {
		p.offset, err = strconv.ParseInt(o[originOffset], 10, 64)
	}
	p.partition = int32(partition)
	if at := o[originTimestamp]; err == nil && at != "" {
		p.at, err = time.Parse(originTime, at)
	}
	if err != nil || p.topic == "" {
		return p, errors.New("its topic, partition and offset were not kept")
	}
	return p, nil
}

// noEventID adds what to do if a message has no event ID.
func noEventID(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: set ConsumerConfig.EventID (kafka.consumer.event_id or kafka.consumers.NAME.event_id) "+
		"to where the producer puts it: header:NAME, json:PATH or offset; then replay the event", err)
}

// Identify sets the message's ID to its event's ID. On an error the ID is empty.
func Identify(source transport.EventIDSource, msg *message.Message, p Place) (err error) {
	msg.UUID, err = source.Find(msg.UUID, msg, p.eventID)
	return noEventID(err)
}

// OriginOf returns where a record comes from, and the ID that it carries.
func OriginOf(record *sarama.ConsumerMessage) transport.Origin {
	o := PlaceOf(record).origin()
	if own := OwnID(record); own != "" {
		o[originID] = own
	}
	return o
}

// FindEventID returns the ID of an event whose message was kept with its origin.
func FindEventID(source transport.EventIDSource, msg *message.Message, origin transport.Origin) (string, error) {
	p, err := placeIn(origin)
	if source == transport.EventIDFromOffset() && err != nil {
		return "", noEventID(err)
	}
	found := &message.Message{UUID: origin[originID], Metadata: msg.Metadata, Payload: msg.Payload}
	err = Identify(source, found, p)
	return found.UUID, err
}

// OwnID returns the ID that Millrace or watermill-kafka has written into the record.
func OwnID(record *sarama.ConsumerMessage) (id string) {
	for i := len(record.Headers) - 1; i >= 0; i-- {
		if header := record.Headers[i]; string(header.Key) == IDHeader {
			return string(header.Value)
		}
	}
	return ""
}
