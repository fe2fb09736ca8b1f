package brokermigration

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

// subscriber reads a topic from both brokers.
type subscriber struct {
	transport *Transport
	group     string
	from, to  message.Subscriber

	once    sync.Once
	stop    chan struct{}
	running sync.WaitGroup
}

// SubscribeInitialize implements message.SubscribeInitializer, for both brokers.
func (s *subscriber) SubscribeInitialize(topic string) error {
	for _, sub := range []message.Subscriber{s.from, s.to} {
		if i, ok := sub.(message.SubscribeInitializer); ok {
			if err := i.SubscribeInitialize(topic); err != nil {
				return err
			}
		}
	}
	return nil
}

// Subscribe implements message.Subscriber.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	ctx, cancel := context.WithCancel(ctx)
	from, err := s.from.Subscribe(ctx, topic)
	if err != nil {
		cancel()
		return nil, err
	}
	to, err := s.to.Subscribe(ctx, topic)
	if err != nil {
		cancel()
		for msg := range from {
			msg.Nack()
		}
		return nil, err
	}
	s.transport.process.reads(Read{Topic: topic, Group: s.group})
	out := make(chan *message.Message)
	var both sync.WaitGroup
	both.Go(func() { s.pass(ctx, from, out, &s.transport.from.traffic) })
	both.Go(func() { s.pass(ctx, to, out, &s.transport.to.traffic) })
	s.running.Go(func() {
		both.Wait()
		cancel()
		close(out)
	})
	return out, nil
}

// pass hands on what one broker delivers, until that ends.
func (s *subscriber) pass(ctx context.Context, in <-chan *message.Message, out chan<- *message.Message, t *traffic) {
	var settling sync.WaitGroup
	defer settling.Wait()
	for msg := range in {
		t.begin()
		delivery := msg.Context() // whoever has the message may change its context
		settling.Go(func() {
			defer t.end()
			select {
			case <-msg.Acked():
			case <-msg.Nacked():
			case <-delivery.Done(): // the broker has given up on it
			}
		})
		select {
		case out <- msg:
			continue
		case <-ctx.Done():
		case <-s.stop:
		}
		msg.Nack() // nobody has taken it
	}
}

// FindEventID implements transport.EventIDFinder, by the broker that knows the message.
func (s *subscriber) FindEventID(msg *message.Message, origin transport.Origin) (id string, err error) {
	for _, sub := range []message.Subscriber{s.from, s.to} {
		if f, ok := sub.(transport.EventIDFinder); ok {
			found, e := f.FindEventID(msg, origin)
			if e == nil {
				return found, nil
			}
			err = errors.Join(err, e)
		}
	}
	return msg.UUID, err
}

// Close implements message.Subscriber.
func (s *subscriber) Close() error {
	s.once.Do(func() { close(s.stop) })
	var to error
	var both sync.WaitGroup
	both.Go(func() { to = s.to.Close() })
	err := s.from.Close()
	both.Wait()
	s.running.Wait()
	return errors.Join(err, to)
}

// traffic tells whether a process has messages of a broker. It is safe for concurrent use.
type traffic struct {
	inFlight, delivered atomic.Int64
	away                atomic.Bool // the broker did not answer
}

func (t *traffic) begin() { t.delivered.Add(1); t.inFlight.Add(1) }
func (t *traffic) end()   { t.inFlight.Add(-1) }

// busy reports whether there was a message since the last call, or may have been.
func (t *traffic) busy() bool {
	return t.delivered.Swap(0) > 0 || t.inFlight.Load() > 0 || t.away.Load()
}
