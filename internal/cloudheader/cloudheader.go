// Package cloudheader gives the headers of a CloudEvent the names of a broker's binding. An event may have been stored for another
// broker: before a migration, or during one.
package cloudheader

import (
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// prefixes of the attributes' names, by broker.
var prefixes = map[string]string{"kafka": "ce_", "pubsub": "ce-"}

// For returns the message for a broker, by its name in a configuration. A CloudEvent in binary mode that has the names of another
// binding is copied. Other messages, and those for a broker without a binding, are returned as they are.
func For(broker string, msg *message.Message) *message.Message {
	want, ok := prefixes[broker]
	if _, right := msg.Metadata[want+"specversion"]; !ok || right {
		return msg
	}
	for _, other := range prefixes {
		if _, ok := msg.Metadata[other+"specversion"]; !ok {
			continue
		}
		named := msg.CopyWithContext()
		for name, value := range msg.Metadata {
			if attribute, ok := strings.CutPrefix(name, other); ok {
				delete(named.Metadata, name)
				named.Metadata[want+attribute] = value
			}
		}
		return named
	}
	return msg
}
