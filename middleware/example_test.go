package middleware_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// From Kafka to Kafka: the price that the handler returns, and the offset of the order, are one Kafka transaction.
func ExampleUnit() {
	ctx, cancel := context.WithCancel(context.Background())
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1)) // for you: Apache Kafka
	if err != nil {
		panic(err)
	}
	defer cluster.Close()
	broker, err := kafka.New(ctx, kafka.Config{
		Brokers: cluster.ListenAddrs(), Delivery: kafka.Transactional, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	defer func() { _ = broker.Close() }()
	subscriberOf := func(consumer string) message.Subscriber {
		subscriber, err := broker.Subscriber(transport.SubscriberConfig{Consumer: consumer})
		if err != nil {
			panic(err)
		}
		return subscriber
	}
	publisher, err := broker.Publisher() // publishes in the transaction of a consumed message, and nowhere else
	if err != nil {
		panic(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		panic(err)
	}
	router.AddMiddleware(middleware.Unit)
	router.AddHandler("price", "orders", subscriberOf("price"), "prices", publisher, func(msg *message.Message) ([]*message.Message, error) {
		return message.Messages{message.NewMessage("price of "+msg.UUID, []byte("EUR 7"))}, nil
	})
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()

	prices, err := subscriberOf("reader").Subscribe(ctx, "prices")
	if err != nil {
		panic(err)
	}
	outside, err := broker.PlainPublisher()
	if err != nil {
		panic(err)
	}
	if err := outside.Publish("orders", message.NewMessage("order-1", nil)); err != nil {
		panic(err)
	}
	price := <-prices
	fmt.Println(price.UUID, "is", string(price.Payload))
	price.Ack()
	cancel()
	fmt.Println("ended:", <-ended)
	// Output:
	// price of order-1 is EUR 7
	// ended: <nil>
}
