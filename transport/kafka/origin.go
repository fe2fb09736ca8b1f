package kafka

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

// EventIDFromHeader takes the event's ID from the header of that name, such as "ce_id" of CloudEvents. Records without it
// become dead letters. The value is the ID as it is, so the producer must give each event one of its own, and the same when
// it sends the event again.
func EventIDFromHeader(name string) transport.EventIDSource { return transport.EventIDFromHeader(name) }

// EventIDFromJSON is EventIDFromHeader for a field of the payload, a JSON object: "data.id" is the field id of the object
// data. It is a string or a number. It must name the event: the ID of an order, say, would make one event of all that happens
// to the order.
func EventIDFromJSON(path string) transport.EventIDSource { return transport.EventIDFromJSON(path) }

// EventIDFromOffset is for producers that send no ID: topic, partition, offset and timestamp of a record are its identity.
// Redeliveries and rebalances keep it. A record that a producer sends twice is two events, and so is its copy in another
// topic. After a topic was deleted and created again its records are other events, by their timestamps; records without one
// are taken for those that lay at their offsets before. A record that carries the ID that Millrace or watermill-kafka writes
// keeps that ID.
//
// The ID is a UUIDv7 with the time of the timestamp, and a claim treats it like any other: a record that is older than what
// is remembered, or from the future, becomes a dead letter. Where producers write other times than now into the timestamps,
// set the topic's message.timestamp.type to LogAppendTime.
func EventIDFromOffset() transport.EventIDSource { return transport.EventIDFromOffset() }

// The names of an Origin.
const (
	originTopic     = "topic"
	originPartition = "partition"
	originOffset    = "offset"
	originTimestamp = "timestamp" // RFC 3339 with milliseconds; missing where it is no plausible time
	originID        = "id"        // what the header of Millrace's ID has, where the ID comes from elsewhere
)

const originTime = "2006-01-02T15:04:05.000Z"

// place is where a record lies.
type place struct {
	topic     string
	partition int32
	offset    int64
	at        time.Time // its timestamp
}

func placeOf(m *sarama.ConsumerMessage) place {
	return place{m.Topic, m.Partition, m.Offset, m.Timestamp}
}

func (p place) eventID() string {
	return placeid.Of(fmt.Sprintf("kafka:%s/%d/%d", p.topic, p.partition, p.offset), p.at)
}

func (p place) origin() transport.Origin {
	o := transport.Origin{
		originTopic: p.topic, originPartition: strconv.Itoa(int(p.partition)), originOffset: strconv.FormatInt(p.offset, 10),
	}
	if placeid.Plausible(p.at) {
		o[originTimestamp] = p.at.UTC().Format(originTime)
	}
	return o
}

// placeIn is the place that an origin tells.
func placeIn(o transport.Origin) (p place, err error) {
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

// noEventID says what to do where a message has no event ID.
func (ConsumerConfig) noEventID(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: set ConsumerConfig.EventID (kafka.consumer.event_id or kafka.consumers.NAME.event_id) "+
		"to where the producer puts it: header:NAME, json:PATH or offset; then replay the event", err)
}

// identify gives the message the ID of its event, none with an error.
func (c ConsumerConfig) identify(msg *message.Message, p place) (err error) {
	msg.UUID, err = c.EventID.Find(msg.UUID, msg, p.eventID)
	return c.noEventID(err)
}

// FindEventID implements transport.EventIDFinder.
func (s *subscriber) FindEventID(msg *message.Message, origin transport.Origin) (string, error) {
	c := s.transport.config.consumer(s.config.Consumer)
	p, err := placeIn(origin)
	if c.EventID == EventIDFromOffset() && err != nil {
		return "", c.noEventID(err)
	}
	found := &message.Message{UUID: origin[originID], Metadata: msg.Metadata, Payload: msg.Payload}
	err = c.identify(found, p)
	return found.UUID, err
}

// Origin implements transport.Originated.
func (d *delivery) Origin() transport.Origin {
	o := placeOf(d.record).origin()
	if own := ownID(d.record); own != "" {
		o[originID] = own
	}
	return o
}

// EventIDError implements transport.Originated.
func (d *delivery) EventIDError() error { return d.unidentified }

// ownID is the ID that Millrace or watermill-kafka has written into the record.
func ownID(record *sarama.ConsumerMessage) (id string) {
	for _, header := range record.Headers {
		if string(header.Key) == idHeader {
			id = string(header.Value)
		}
	}
	return id
}
