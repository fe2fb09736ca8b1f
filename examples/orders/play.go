package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// stall is how long nothing may change before what is missing counts as lost.
const stall = 30 * time.Second

// play places the orders while processors are killed, and judges the results.
func play(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, "starting kafka …")
	stack, err := devstack.Start(ctx, devstack.Kafka)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stage.Left(stack.Stop())) }()
	logs := o.Logs(stderr)
	service := stack.Services()[0]
	fmt.Fprintln(stdout, "  kafka:", service.Source)
	id := fmt.Sprintf("%08x", rand.Uint32())
	c := config{Brokers: stack.KafkaBrokers(), Orders: "orders-" + id, Results: "order-results-" + id, Delivery: o.delivery}
	broker, err := c.createTopics(ctx, slog.New(slog.NewTextHandler(logs, nil)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	r, err := startReader(c)
	if err != nil {
		return err
	}
	defer r.stop()

	cast := stage.NewProcesses(ctx, logs, func(_ string, number int) any {
		own := c
		own.Number = number + 1
		return own
	})
	defer cast.Close()
	cast.Start("processor", o.processors)
	s := show{options: o, config: c, reader: r, stdout: stdout, cast: cast}
	placed := make(chan error, 1)
	placing, stopPlacing := context.WithCancel(ctx)
	go func() { placed <- placeOrders(placing, broker, c.Orders, o) }()
	err = s.watch(ctx, placed)
	stopPlacing()
	if err != nil {
		return err
	}
	cast.Close()
	results, err := readAll(ctx, c)
	if err != nil {
		return err
	}
	v := judge(o.orders, results)
	v.print(stdout, cast.Kills["processor"], service.Source, o.delivery)
	if !v.good() {
		return stage.ErrVerdict
	}
	return nil
}

// createTopics connects the shop, which is not killed and needs no transactions, and creates the topics with it.
func (c config) createTopics(ctx context.Context, log *slog.Logger) (*kafka.Transport, error) {
	broker, err := kafka.New(ctx, kafka.Config{Brokers: c.Brokers, Logger: log})
	if err != nil {
		return nil, err
	}
	sub, err := broker.Subscriber(transport.SubscriberConfig{Consumer: consumer})
	for _, topic := range []string{c.Orders, c.Results} {
		if err == nil {
			err = sub.(message.SubscribeInitializer).SubscribeInitialize(topic)
		}
	}
	if err != nil {
		return nil, errors.Join(err, broker.Close())
	}
	return broker, nil
}

func orderID(number int) string { return fmt.Sprintf("order-%d", number) }

// span is how long placing the orders takes: a little longer than the kills, of which there is about one per second.
func (o options) span() time.Duration {
	return time.Duration(max(float64(o.Kills)*0.9+2, float64(o.orders)/1000) * float64(time.Second))
}

// placeOrders publishes the orders of some customers, a few at a time. Closing the broker ends it.
func placeOrders(ctx context.Context, broker *kafka.Transport, topic string, o options) error {
	pub, err := broker.Publisher()
	if err != nil {
		return err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	began, placed := time.Now(), 0
	for placed < o.orders {
		due := int(float64(o.orders) * min(1, float64(time.Since(began))/float64(o.span())))
		var msgs []*message.Message
		for ; placed < due; placed++ {
			customer := fmt.Sprintf("customer-%d", rand.IntN(100))
			payload, err := json.Marshal(order{OrderID: orderID(placed), Customer: customer, Cents: 100 + rand.IntN(10_000)})
			if err != nil {
				return err
			}
			msg := message.NewMessage(watermill.NewUUID(), payload)
			transport.SetKey(msg, customer)
			msgs = append(msgs, msg)
		}
		if err := pub.Publish(topic, msgs...); err != nil {
			return fmt.Errorf("place orders: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// show watches the processors.
type show struct {
	options
	config
	reader *reader
	stdout io.Writer
	cast   *stage.Cast
}

// watch kills processors until every order is settled or nothing has changed for long.
func (s show) watch(ctx context.Context, placed <-chan error) error {
	next := func() time.Time {
		return time.Now().Add(time.Duration((0.4 + 0.9*rand.Float64()) * float64(time.Second)))
	}
	killAt, told, moved, last, killed, all := next().Add(time.Second), time.Now(), time.Now(), 0, 0, false
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-placed:
			if err != nil {
				return err
			}
			all, placed = true, nil
		case err := <-s.cast.Failed():
			return err
		case <-tick.C:
		}
		now, count := time.Now(), s.reader.count()
		if count != last {
			last, moved = count, now
		}
		if killed < s.Kills && now.After(killAt) && count > 0 && s.cast.Kill("processor") {
			killed++
			killAt = next()
			s.tell("SIGKILL %d of %d, after %d results; the processor is started again", killed, s.Kills, count)
		}
		if now.Sub(told) > 2*time.Second {
			told = now
			s.tell("%d of %d orders have a result", count, s.orders)
		}
		if all && killed == s.Kills {
			if done, err := s.reader.settled(ctx, s.config); err == nil && done {
				s.tell("every order is settled")
				return nil
			}
		}
		if now.Sub(moved) > stall {
			s.tell("nothing has moved for %v", stall)
			return nil
		}
	}
}

func (s show) tell(format string, args ...any) { fmt.Fprintf(s.stdout, format+"\n", args...) }
