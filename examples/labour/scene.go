package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

const (
	subscribers = 3
	patience    = 30 * time.Second // includes the broker's redelivery
)

// scene is a case that runs in some ways, with its own labour, topic and consumer.
type scene struct {
	p      *stage.Part
	ways   ways
	id     int64
	name   string
	bus    *bus
	events *outbox.Publisher
	ledger *effect.Ledger
	texts  *texts

	arrived, finished atomic.Int64 // deliveries

	// The failures.
	beforeCommit  func() error
	behindTheText func() error
	meet          func(ctx context.Context)
}

func (s *scene) topic() string { return s.p.Topic(s.name) }

// outcome is the result for the family.
type outcome struct {
	completed     bool
	lost, doubled int // notifications and texts
}

func (o outcome) good() bool { return o == outcome{completed: true} }

func (o outcome) String() string {
	if o.good() {
		return "told once"
	}
	var what []string
	for _, w := range []struct {
		n    int
		text string
	}{{o.lost, "lost"}, {o.doubled, "too many"}} {
		if w.n > 0 {
			what = append(what, fmt.Sprintf("%d %s", w.n, w.text))
		}
	}
	if !o.completed {
		what = append(what, "the labour is not completed")
	}
	return fmt.Sprintf("of %d notifications and texts: %s", 2*subscribers, strings.Join(what, ", "))
}

// playCase makes the mother complete her labour, with retries, and returns the outcome.
func playCase(ctx context.Context, p *stage.Part, id int64, c scenario, w ways) (o outcome, err error) {
	fine := func() error { return nil }
	s := &scene{
		p: p, ways: w, id: id, name: fmt.Sprintf("labour.completed.%d", id), texts: &texts{sent: map[string]int{}},
		beforeCommit: fine, behindTheText: fine, meet: func(context.Context) {},
	}
	publisher, err := p.Broker.Publisher()
	if err != nil {
		return o, err
	}
	s.bus = &bus{BatchPublisher: publisher.(transport.BatchPublisher), faults: map[string]fault{}}
	if s.events, err = outbox.NewPublisher(outbox.PublisherConfig{Schema: p.Schema}); err != nil {
		return o, err
	}
	if s.ledger, err = effect.New(p.Pool, effect.Config{Service: "labour", Schema: p.Schema, Logger: p.Log}); err != nil {
		return o, err
	}
	defer s.ledger.Close()
	relay, err := outbox.NewRelay(p.Pool, s.bus, outbox.RelayConfig{Schema: p.Schema, LeaseTTL: time.Second, PollInterval: 100 * time.Millisecond, Logger: p.Log})
	if err != nil {
		return o, err
	}
	router, err := s.router()
	if err != nil {
		return o, err
	}
	if err := s.begin(ctx); err != nil {
		return o, err
	}
	c.arrange(s)
	played := errors.New("played")
	err = stage.Together(ctx, relay.Run, router.Run, func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-router.Running():
		}
		if err := s.insist(ctx, c); err != nil {
			return err
		}
		if want := int64(c.deliveries(w)); !await(ctx, patience, func() bool { return s.finished.Load() >= want }) {
			return fmt.Errorf("%d of %d deliveries within %v", s.finished.Load(), want, patience)
		}
		return played
	})
	if !errors.Is(err, played) {
		return o, err
	}
	return s.judge(ctx)
}

// begin creates a labour with contractions and subscribers.
func (s *scene) begin(ctx context.Context) error {
	for _, sql := range []string{
		`insert into labours (id, mother) values ($1, 'Mother ' || $1::bigint)`,
		`insert into contractions (labour_id, began_at, ended_at) select $1, now() - i * interval '5 min', now() - i * interval '4 min' from generate_series(1, 3) i`,
	} {
		if _, err := s.p.Pool.Exec(ctx, sql, s.id); err != nil {
			return err
		}
	}
	for i := range subscribers {
		if _, err := s.p.Pool.Exec(ctx, `insert into subscribers (labour_id, phone) values ($1, $2)`, s.id, s.phone(i)); err != nil {
			return err
		}
	}
	return nil
}

func (s *scene) phone(i int) string { return fmt.Sprintf("+49-%d-%d", s.id, i) }

// insist completes the labour, and retries until the service says that it is completed.
func (s *scene) insist(ctx context.Context, c scenario) error {
	for try := range 10 {
		err := s.completeLabour(ctx)
		if try == 0 && c.mend != nil {
			c.mend(s)
		}
		if err == nil || errors.Is(err, errCompleted) {
			return nil
		}
	}
	return errors.New("the labour cannot be completed")
}

// judge reads tables and texts.
func (s *scene) judge(ctx context.Context) (o outcome, err error) {
	if err := s.p.Pool.QueryRow(ctx, `select completed_at is not null from labours where id = $1`, s.id).Scan(&o.completed); err != nil {
		return o, err
	}
	for i := range subscribers {
		notified := 0
		if err := s.p.Pool.QueryRow(ctx, `select count(*) from notifications where phone = $1`, s.phone(i)).Scan(&notified); err != nil {
			return o, err
		}
		for _, n := range []int{notified, s.texts.to(s.phone(i))} {
			o.lost += max(1-n, 0)
			o.doubled += max(n-1, 0)
		}
	}
	return o, nil
}

// fault is a fault of the bus for a topic.
type fault struct {
	down  bool // no message gets through
	deaf  bool // the next batch gets through, but its acks do not
	twice bool // every message gets through twice
}

// bus is the broker with its faults.
type bus struct {
	transport.BatchPublisher
	mu     sync.Mutex
	faults map[string]fault
}

func (b *bus) set(topic string, f fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults[topic] = f
}

// take returns the fault, and removes it if it applies once.
func (b *bus) take(topic string) fault {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.faults[topic]
	if f.deaf {
		b.faults[topic] = fault{}
	}
	return f
}

// PublishBatch implements transport.BatchPublisher.
func (b *bus) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	f := b.take(topic)
	results := make([]error, len(msgs))
	if !f.down {
		results = b.BatchPublisher.PublishBatch(ctx, topic, msgs)
	}
	if f.twice {
		again := make([]*message.Message, len(msgs))
		for i, m := range msgs {
			again[i] = m.Copy()
			transport.SetKey(again[i], "another partition")
		}
		b.BatchPublisher.PublishBatch(ctx, topic, again)
	}
	if f.down || f.deaf {
		for i := range results {
			results[i] = fmt.Errorf("%w: it does not answer", transport.ErrUnavailable)
		}
	}
	return results
}

// Publish implements message.Publisher.
func (b *bus) Publish(topic string, msgs ...*message.Message) error {
	return stage.OneByOne(b, topic, msgs)
}
