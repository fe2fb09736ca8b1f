package pubsub_test

import (
	"fmt"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// Events of one key arrive in their order, from a subscription of the consumer's own.
func ExampleNew() {
	t := devtest.Example()
	defer t.End()
	ctx, topic := t.Context(), devtest.Topic(t)
	broker, err := pubsub.New(ctx, pubsub.Config{
		ProjectID:     devtest.Project(t),
		ClientOptions: plain(devtest.Start(t, devstack.PubSub).PubSubHost()), // for you: none, they come from the environment
		Logger:        slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	defer func() { _ = broker.Close() }()
	publisher, err := broker.Publisher()
	if err != nil {
		panic(err)
	}
	subscriber, err := broker.Subscriber(transport.SubscriberConfig{Consumer: "notify-family", Ordered: true})
	if err != nil {
		panic(err)
	}
	events, err := subscriber.Subscribe(ctx, topic)
	if err != nil {
		panic(err)
	}

	for _, news := range []string{"it begins", "it is a girl"} {
		event := message.NewMessage("event: "+news, []byte(news))
		transport.SetKey(event, "labour-7")
		if err := publisher.Publish(topic, event); err != nil {
			panic(err)
		}
	}
	for range 2 {
		event := <-events
		fmt.Println(transport.Key(event), string(event.Payload))
		event.Ack()
	}
	// Output:
	// labour-7 it begins
	// labour-7 it is a girl
}
