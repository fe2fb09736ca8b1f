package transport

import "github.com/ThreeDotsLabs/watermill/message"

// KeyMetadata is the metadata entry that carries an event's key inside a service. On the wire a transport uses the broker's own
// field instead (Pub/Sub's ordering key, Kafka's record key). A publisher of another library must be configured to do so as well,
// or the order is lost: outbox.NewRelay says how.
const KeyMetadata = "_millrace_key"

// SetKey gives the message a key, usually the ID of the aggregate that the event is about. Events with the same key keep their
// order from the outbox to an ordered consumer. An empty key removes the message's key.
func SetKey(msg *message.Message, key string) {
	if key == "" {
		delete(msg.Metadata, KeyMetadata)
		return
	}
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	msg.Metadata[KeyMetadata] = key
}

// Key returns the message's key, or "" when it has none.
func Key(msg *message.Message) string { return msg.Metadata[KeyMetadata] }
