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

// order is the event that a customer has ordered.
type order struct {
	OrderID  string `json:"orderId"`
	Customer string `json:"customer"`
	Cents    int    `json:"cents"`
}

// result is what became of it.
type result struct {
	OrderID   string `json:"orderId"`
	Processed bool   `json:"processed"`
	Processor int    `json:"processor"` // its process ID
}

// config is what a processor needs to know.
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
		Delivery: deliveries[c.Delivery], // all that makes the difference
		Consumer: kafka.ConsumerConfig{
			// One that is killed and comes again finds its partitions as it left them.
			InstanceID: fmt.Sprintf("processor-%d", c.Number), SessionTimeout: 6 * time.Second,
		},
		DrainTimeout: 5 * time.Second,
		Logger:       log,
	}
}

// process runs the order processor: a Watermill router like any other.
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
	fmt.Println("up") // to who kills it
	router.AddMiddleware(middleware.Unit)
	router.AddHandler(consumer, c.Orders, orders, c.Results, results, processOrder)
	return router.Run(ctx)
}

// processOrder is the business logic. It knows of no broker and no transaction.
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
