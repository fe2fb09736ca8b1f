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

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/internal/role"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

const (
	// stall is how long nothing may move before what is missing counts as lost.
	stall        = 30 * time.Second
	stopPatience = 15 * time.Second
	maxCrashes   = 20
)

// play places the orders while processors are killed, and judges.
func play(ctx context.Context, o options, stdout, stderr io.Writer) (v verdict, err error) {
	fmt.Fprintln(stdout, "starting kafka …")
	stack, err := devstack.Start(ctx, devstack.Kafka)
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, stack.Stop()) }()
	logs := io.Discard
	if o.verbose {
		logs = stderr
	}
	service := stack.Services()[0]
	fmt.Fprintln(stdout, "  kafka:", service.Source)
	id := fmt.Sprintf("%08x", rand.Uint32())
	c := config{Brokers: stack.KafkaBrokers(), Orders: "orders-" + id, Results: "order-results-" + id, Delivery: o.delivery}
	broker, err := c.createTopics(ctx, slog.New(slog.NewTextHandler(logs, nil)))
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	r, err := startReader(c)
	if err != nil {
		return v, err
	}
	defer r.stop()

	s := &show{options: o, config: c, reader: r, stdout: stdout, logs: logs, kills: make([]int, o.processors)}
	defer s.killAll()
	if err := s.start(); err != nil {
		return v, err
	}
	placed := make(chan error, 1)
	placing, stopPlacing := context.WithCancel(ctx)
	go func() { placed <- placeOrders(placing, broker, c.Orders, o) }()
	err = s.watch(ctx, placed)
	stopPlacing()
	if err != nil {
		return v, err
	}
	s.stop()
	results, err := readAll(ctx, c)
	if err != nil {
		return v, err
	}
	v = judge(o.orders, results)
	v.print(stdout, s.kills, service.Source, o.delivery)
	return v, nil
}

// createTopics connects the shop, which is not killed and needs no transactions, and creates the topics by it.
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

// span is how long the placing of the orders takes: a little longer than the kills, of which there is about one a second.
func (o options) span() time.Duration {
	return time.Duration(max(float64(o.kills)*0.9+2, float64(o.orders)/1000) * float64(time.Second))
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

// show is the processors at work.
type show struct {
	options
	config
	reader     *reader
	stdout     io.Writer
	logs       io.Writer
	processors []*role.Process
	kills      []int
	crashes    int
}

func (s *show) start() error {
	for i := range s.options.processors {
		p, err := s.startOne(i)
		if err != nil {
			return err
		}
		s.processors = append(s.processors, p)
	}
	return nil
}

func (s *show) startOne(i int) (*role.Process, error) {
	c := s.config
	c.Number = i + 1
	return role.Start("processor", c, s.logs, s.logs)
}

// watch kills processors, until every order is settled or nothing has moved for long.
func (s *show) watch(ctx context.Context, placed <-chan error) error {
	next := func() time.Time {
		return time.Now().Add(time.Duration((0.4 + 0.9*rand.Float64()) * float64(time.Second)))
	}
	killAt, told, moved, last, killed, all := next().Add(time.Second), time.Now(), time.Now(), 0, 0, false
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-placed:
			if err != nil {
				return err
			}
			all, placed = true, nil
		case <-tick.C:
		}
		if err := s.revive(); err != nil {
			return err
		}
		now, count := time.Now(), s.reader.count()
		if count != last {
			last, moved = count, now
		}
		if killed < s.options.kills && now.After(killAt) && count > 0 {
			if err := s.kill(rand.IntN(len(s.processors))); err != nil {
				return err
			}
			killed++
			killAt = next()
		}
		if now.Sub(told) > 2*time.Second {
			told = now
			s.tell("%d of %d orders have a result", count, s.orders)
		}
		if all && killed == s.options.kills {
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

func (s *show) tell(format string, args ...any) { fmt.Fprintf(s.stdout, format+"\n", args...) }

func (s *show) kill(i int) error {
	pid := s.processors[i].PID()
	if s.processors[i].Kill() {
		s.kills[i]++
		s.tell("SIGKILL processor %d (process %d) after %d results; it is started again", i+1, pid, s.reader.count())
	}
	var err error
	s.processors[i], err = s.startOne(i)
	return err
}

// revive starts again what has ended by itself.
func (s *show) revive() error {
	for i, p := range s.processors {
		select {
		case <-p.Ended():
		default:
			continue
		}
		if s.crashes++; s.crashes == maxCrashes {
			return fmt.Errorf("processors ended %d times by themselves, at last with: %w; see their logs with -v", s.crashes, p.Err())
		}
		if err := s.kill(i); err != nil {
			return err
		}
	}
	return nil
}

func (s *show) stop() {
	for i, p := range s.processors {
		if err := p.Stop(stopPatience); err != nil {
			s.tell("processor %d: %v", i+1, err)
		}
	}
}

func (s *show) killAll() {
	for _, p := range s.processors {
		p.Kill()
	}
}
