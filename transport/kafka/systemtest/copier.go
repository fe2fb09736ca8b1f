package main

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

const (
	transactional = "transactional"
	atLeastOnce   = "at-least-once"
	franzGo       = "franz-go"
)

// copiers is the ways to copy.
var copiers = map[string]func(context.Context, copierConfig, *pace) error{
	transactional: func(ctx context.Context, c copierConfig, p *pace) error {
		return millrace(ctx, c, kafka.Transactional, p)
	},
	atLeastOnce: func(ctx context.Context, c copierConfig, p *pace) error {
		return millrace(ctx, c, kafka.AtLeastOnce, p)
	},
	franzGo: reference,
}

const (
	transactionSize    = 750 // as in Apache Kafka's tests
	transactionTimeout = 10 * time.Second
	sessionTimeout     = 6 * time.Second
)

// copierConfig is what a copier process needs to know.
type copierConfig struct {
	Delivery             string
	Brokers              []string
	Input, Output, Group string
	Number               int
	Instance             string        // of a static member; "" for none
	Every                time.Duration // at most one message in this time; 0 for as many as it can
}

// playCopier is a copier process.
func playCopier(ctx context.Context, config copierConfig, told <-chan string) error {
	p := &pace{every: config.Every}
	go func() {
		<-told // to hurry, and nothing else
		p.hurry()
	}()
	return copiers[config.Delivery](ctx, config, p)
}

// millrace copies by a Watermill router on our transport.
func millrace(ctx context.Context, config copierConfig, delivery kafka.Delivery, p *pace) (err error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})).With("copier", config.Number)
	broker, err := kafka.New(ctx, kafka.Config{
		Brokers:     config.Brokers,
		Topics:      kafka.Topics{Missing: kafka.CheckOnly},
		Delivery:    delivery,
		Transaction: kafka.Transaction{MaxRecords: transactionSize, Timeout: transactionTimeout},
		Consumer:    kafka.ConsumerConfig{InstanceID: config.Instance, SessionTimeout: sessionTimeout},
		Logger:      log,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	output, err := broker.Publisher()
	if err != nil {
		return err
	}
	input, err := broker.Subscriber(transport.SubscriberConfig{Consumer: config.Group, Concurrency: 10, Ordered: true})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(log))
	if err != nil {
		return err
	}
	router.AddMiddleware(middleware.Unit)
	router.AddHandler("copy", config.Input, input, config.Output, output, func(msg *message.Message) ([]*message.Message, error) {
		p.wait(msg.Context())
		// Apache Kafka's copier aborts transactions at random. Here handlers fail, and no transaction is aborted for that.
		if rand.IntN(500) == 0 {
			return nil, errors.New("as it happens")
		}
		copied := message.NewMessage(msg.UUID, msg.Payload)
		transport.SetKey(copied, transport.Key(msg))
		return []*message.Message{copied}, nil
	})
	return router.Run(ctx)
}

// pace slows the copying down. It is safe for concurrent use.
type pace struct {
	mu    sync.Mutex
	every time.Duration
	next  time.Time
}

func (p *pace) hurry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.every = 0
}

// wait returns when the next message may be copied.
func (p *pace) wait(ctx context.Context) {
	p.mu.Lock()
	now := time.Now()
	turn := p.next
	if turn.Before(now) {
		turn = now
	}
	p.next = turn.Add(p.every)
	hurried := p.every == 0
	p.mu.Unlock()
	if hurried {
		return
	}
	_ = pause(ctx, time.Until(turn)) // a cancelled handler's message is not settled
}
