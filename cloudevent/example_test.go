package cloudevent_test

import (
	"fmt"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/millrace-go/millrace/cloudevent"
)

// An event becomes a message for Kafka, and is read again.
func ExampleToMessage() {
	e := event.New()
	e.SetID("1234")
	e.SetSource("/shop")
	e.SetType("OrderPlaced")
	if err := e.SetData(event.ApplicationJSON, map[string]int{"order": 7}); err != nil {
		panic(err)
	}
	msg, err := cloudevent.ToMessage(e, cloudevent.Kafka, cloudevent.Binary)
	if err != nil {
		panic(err)
	}
	fmt.Println(msg.Metadata["ce_type"], string(msg.Payload))
	read, err := cloudevent.FromMessage(msg)
	fmt.Println(read.Source(), read.ID(), err)
	// Output:
	// OrderPlaced {"order":7}
	// /shop 1234 <nil>
}
