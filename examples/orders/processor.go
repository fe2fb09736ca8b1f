package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

const consumer = "order-processor"

// order is a customer's order, as an event.
type order struct {
	OrderID  string `json:"orderId"`
	Customer string `json:"customer"`
	Cents    int    `json:"cents"`
}

// result is the result of an order.
type result struct {
	OrderID   string `json:"orderId"`
	Processed bool   `json:"processed"`
	Processor int    `json:"processor"` // its process ID
}

// config is a processor's configuration.
type config struct {
	Brokers         []string
	Orders, Results string // topics
	Delivery        string
	Number          int
}

// kafka returns the settings of a processor's transport.
func (c config) kafka(log *slog.Logger) kafka.Config {
	return kafka.Config{
		Brokers:  c.Brokers,
		Delivery: deliveries[c.Delivery], // the only difference
		Consumer: kafka.ConsumerConfig{
			// A restarted processor gets the same partitions, without a rebalance.
			InstanceID: fmt.Sprintf("processor-%d", c.Number), SessionTimeout: 6 * time.Second,
		},
		DrainTimeout: 5 * time.Second,
		Logger:       log,
	}
}

// process runs the order processor, an ordinary Watermill router.
func process(ctx context.Context, c config, _ <-chan string) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("processor", c.Number, "pid", os.Getpid())
	broker, err := kafka.New(ctx, c.kafka(log))
	if err != nil {
		return err
	}
	defer func() { _ = broker.Close() }()
	orders, err := broker.Subscriber(transport.SubscriberConfig{Consumer: consumer, Ordered: true})
	if err != nil {
		return err
	}
	results, err := broker.Publisher()
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(log))
	if err != nil {
		return err
	}
	fmt.Println("up") // for the process that kills it
	router.AddMiddleware(middleware.Unit)
	router.AddHandler(consumer, c.Orders, orders, c.Results, results, processOrder)
	return router.Run(ctx)
}

// processOrder is the business logic. It knows neither broker nor transaction.
func processOrder(msg *message.Message) ([]*message.Message, error) {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return nil, err
	}
	payload, err := json.Marshal(result{OrderID: o.OrderID, Processed: true, Processor: os.Getpid()})
	if err != nil {
		return nil, err
	}
	out := message.NewMessage(watermill.NewUUID(), payload)
	transport.SetKey(out, o.Customer)
	return []*message.Message{out}, nil
}
