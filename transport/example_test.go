package transport_test

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// Events with the same key are delivered in order. A message that is too large for the brokers is told before it is published.
func ExampleSetKey() {
	event := message.NewMessage("event-1", []byte("it is a girl"))
	transport.SetKey(event, "labour-7")
	fmt.Println(transport.Key(event), transport.Size(event), transport.DefaultLimits.Check("labour.completed", event))

	fmt.Println(transport.Limits{MessageBytes: 20}.Check("labour.completed", event))
	// Output:
	// labour-7 27 <nil>
	// message exceeds a limit: message size in bytes is 27, the limit is 20
}
