package pubsub

import "github.com/millrace-go/millrace/transport"

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
