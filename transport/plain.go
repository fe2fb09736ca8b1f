package transport

import "github.com/ThreeDotsLabs/watermill/message"

// PlainPublisher returns a publisher of t's for messages that are part of no consumed one's transaction: a relay's. It is
// that of t.Publisher where the transport settles nothing in transactions. It may be called concurrently; t owns the publisher.
func PlainPublisher(t Transport) (message.Publisher, error) {
	if plain, ok := t.(interface {
		PlainPublisher() (message.Publisher, error)
	}); ok {
		return plain.PlainPublisher()
	}
	return t.Publisher()
}
