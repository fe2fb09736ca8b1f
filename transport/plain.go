package transport

import "github.com/ThreeDotsLabs/watermill/message"

// PlainPublisher returns a publisher of t for messages that belong to no consumed message's transaction, such as a relay's. If
// the transport has no transactions, it is t.Publisher. It may be called concurrently; t owns the publisher.
func PlainPublisher(t Transport) (message.Publisher, error) {
	if plain, ok := t.(interface {
		PlainPublisher() (message.Publisher, error)
	}); ok {
		return plain.PlainPublisher()
	}
	return t.Publisher()
}
