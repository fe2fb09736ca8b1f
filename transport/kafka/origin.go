package kafka

import "github.com/millrace-go/millrace/transport"

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
