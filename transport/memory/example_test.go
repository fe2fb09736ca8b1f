package memory_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/memory"
)

// Any transport is used like this; only the first line names the broker.
func ExampleNew() {
	broker, err := memory.New(memory.Config{})
	if err != nil {
		panic(err)
	}
	defer broker.Close() // never fails

	subscriber, err := broker.Subscriber(transport.SubscriberConfig{Consumer: "notify-parents", Ordered: true})
	if err != nil {
		panic(err)
	}
	events, err := subscriber.Subscribe(context.Background(), "labour.completed")
	if err != nil {
		panic(err)
	}

	publisher, err := broker.Publisher()
	if err != nil {
		panic(err)
	}
	event := message.NewMessage("event-1", []byte("it is a girl"))
	transport.SetKey(event, "labour-7")
	if err := publisher.Publish("labour.completed", event); err != nil {
		panic(err)
	}

	received := <-events
	fmt.Println(received.UUID, transport.Key(received), string(received.Payload))
	fmt.Println("attempt", transport.DeliveryFrom(received.Context()).Attempt())
	received.Ack()
	// Output:
	// event-1 labour-7 it is a girl
	// attempt 1
}
