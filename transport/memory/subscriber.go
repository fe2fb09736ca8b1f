package memory

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/tracing"
	"github.com/millrace-go/millrace/transport"
)

// firstRetry and lastRetry are the shortest and the longest delay before a nacked message is redelivered without a
// RetryAfter. The delay doubles with each attempt.
const (
	firstRetry = 10 * time.Millisecond
	lastRetry  = time.Second
)

// subscriber is one subscriber of the in-memory transport.
type subscriber struct {
	transport *Transport
	config    transport.SubscriberConfig

	mu       sync.Mutex
	closed   bool
	stop     chan struct{}  // closed by Close to end the intake
	running  sync.WaitGroup // one for each Subscribe; Add is only called with mu locked and closed false
	closeAll sync.Once
}

func newSubscriber(m *Transport, config transport.SubscriberConfig) *subscriber {
	return &subscriber{transport: m, config: config, stop: make(chan struct{})}
}

// SubscribeInitialize implements message.SubscribeInitializer. After the call the topic keeps messages for the consumer.
func (s *subscriber) SubscribeInitialize(topic string) error {
	_, err := s.group(topic)
	return err
}

// Subscribe implements message.Subscriber. Ending ctx stops this subscription as Close would. The contexts of its
// messages carry ctx's values but not its cancellation, so that running handlers can finish.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	group, err := s.group(topic)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, transport.ErrClosed
	}
	sub := &subscription{
		group: group,
		dead:  s.transport.broker.topic(transport.DeadLetterTopic(topic, s.config.Consumer)),
		tracing: tracing.NewDeliveries(s.transport.config.TracerProvider, s.transport.config.Propagator,
			"github.com/millrace-go/millrace/transport/memory", "memory", topic, s.config.Consumer),
		drain: s.transport.config.DrainTimeout,
		slots: make(chan struct{}, s.config.Concurrency),
		out:   make(chan *message.Message),
		stop:  make(chan struct{}),
	}
	s.running.Go(func() { sub.run(ctx, s.stop) })
	return sub.out, nil
}

// Close implements message.Subscriber. Transport.Subscriber documents how long it waits.
func (s *subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.closeAll.Do(func() { close(s.stop) })
	s.running.Wait()
	s.transport.forget(s)
	return nil
}

func (s *subscriber) group(topic string) (*group, error) {
	if err := transport.RefusePattern(topic); err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", topic, err)
	}
	if pattern := s.transport.config.Limits.Topic; pattern != nil && !pattern.MatchString(topic) {
		return nil, fmt.Errorf("subscribe to %s: %w: topic does not match %s", topic, transport.ErrLimit, pattern)
	}
	group, err := s.transport.broker.topic(topic).group(s.config.Consumer, s.config.Ordered)
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", topic, err)
	}
	return group, nil
}

// subscription is one call of Subscribe.
type subscription struct {
	group   *group
	dead    *topic
	tracing tracing.Deliveries
	drain   time.Duration
	slots   chan struct{} // one for each message that is delivered and neither acked nor nacked
	out     chan *message.Message
	stop    chan struct{} // closed when ctx or the subscriber ends
}

// run delivers until ctx ends or closing is closed. It returns after all goroutines that it started have ended.
func (s *subscription) run(ctx context.Context, closing <-chan struct{}) {
	var goroutines sync.WaitGroup
	messages, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	goroutines.Go(func() { s.deliver(messages, &goroutines) })

	select {
	case <-ctx.Done():
	case <-closing:
	}
	close(s.stop)
	timer := time.AfterFunc(s.drain, abandon)
	defer timer.Stop()
	goroutines.Wait()
}

func (s *subscription) deliver(messages context.Context, goroutines *sync.WaitGroup) {
	defer close(s.out)
	for {
		select {
		case s.slots <- struct{}{}:
		case <-s.stop:
			return
		}
		item := s.group.take(s.stop)
		if item == nil {
			return
		}
		delivery := &delivery{attempt: item.attempts}
		msg := cloneMessage(item.msg)
		ctx, span := s.tracing.Begin(messages, msg, item.attempts)
		ctx, cancel := context.WithCancel(transport.WithDelivery(ctx, delivery))
		msg.SetContext(ctx)
		select {
		case s.out <- msg:
			goroutines.Go(func() {
				defer cancel()
				acked := s.await(ctx, msg, item, delivery)
				tracing.End(span, "not acked", !acked && delivery.after.Load() == 0)
				<-s.slots
			})
		case <-s.stop:
			cancel()
			span.End()
			s.group.update(func(q *queue) { q.putBack(item) })
			return
		}
	}
}

// await settles one delivered message: after its ack, its nack, or the end of ctx, which the drain timeout cancels.
func (s *subscription) await(ctx context.Context, msg *message.Message, item *queued, delivery *delivery) (acked bool) {
	retry := func(after time.Duration) {
		s.group.update(func(q *queue) { q.retry(item, time.Now().Add(after)) })
	}
	select {
	case <-msg.Acked():
		s.group.update(func(q *queue) { q.done(item) })
		return true
	case <-msg.Nacked():
		if cause := delivery.Rejected(); cause != nil {
			s.reject(item, cause)
			s.group.update(func(q *queue) { q.done(item) })
			break
		}
		retry(delivery.delay())
	case <-ctx.Done():
		select {
		case <-msg.Acked(): // acked at the same moment: the ack wins
			s.group.update(func(q *queue) { q.done(item) })
			return true
		default:
			retry(0)
		}
	}
	return false
}

// reject publishes the message to the consumer's dead-letter topic.
func (s *subscription) reject(item *queued, cause error) {
	dead := cloneMessage(item.msg)
	transport.MarkRejected(dead, cause)
	s.dead.keep(dead)
}

// delivery implements Delivery.
type delivery struct {
	transport.Rejection
	attempt int
	after   atomic.Int64 // in nanoseconds; 0 if RetryAfter was not called
}

func (d *delivery) Attempt() int                   { return d.attempt }
func (d *delivery) RetryAfter(after time.Duration) { d.after.Store(int64(after)) }
func (d *delivery) Handled()                       {}

func (d *delivery) delay() time.Duration {
	if after := time.Duration(d.after.Load()); after > 0 {
		return after
	}
	delay := firstRetry
	for i := 1; i < d.attempt && delay < lastRetry; i++ {
		delay *= 2
	}
	return min(delay, lastRetry)
}
