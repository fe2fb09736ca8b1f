package kafka

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/tracing"
	"github.com/millrace-go/millrace/transport"
)

const (
	// handOverTimeout is how long a partition that is to go to another member stays for the handlers that have messages of
	// it. Without it every rebalance and every stop would deliver all of those a second time; a slow handler does not hold
	// the partition up for longer.
	handOverTimeout = time.Second
	// leaveTimeout is the same of a subscription that is closed, for all its partitions. It is longer, because this rebalance
	// is ours to begin.
	leaveTimeout = 2 * time.Second
	// prefetchBytes bounds what a partition holds in memory, beyond Prefetch, which counts records.
	prefetchBytes = 16 << 20
	// The waits before the group is joined again after a failure: the first and the largest. It doubles each time.
	firstJoinRetry = 100 * time.Millisecond
	lastJoinRetry  = 10 * time.Second
)

// subscription is one call of Subscribe: a member of the consumer's group, and what is between it and the handlers.
type subscription struct {
	transport *Transport
	config    transport.SubscriberConfig
	settings  ConsumerConfig
	topic     string
	log       *slog.Logger
	observer  *groupObserver
	tracing   tracing.Deliveries

	client     sarama.Client
	disconnect context.CancelFunc // ends the client's connections
	group      sarama.ConsumerGroup
	committer  *committer // of transactional delivery

	sending  sync.RWMutex          // held for reading while sending to out, for writing to close it
	out      chan *message.Message // closed after stop; with room for as many as there are slots
	sent     atomic.Int64          // to out
	slots    chan struct{}         // one per message that is delivered and neither acked nor nacked
	stop     chan struct{}         // closed when ctx or the subscriber ends
	messages context.Context       // parent of the messages' contexts
	abandon  context.CancelFunc    // of messages
	running  sync.WaitGroup        // one per message that is delivered and not settled; Add only while sending

	mu        sync.Mutex
	intakes   map[int32]*intake
	topicGone func() // ends the session
}

// newSubscription connects to the group. Ending ctx does not end the messages' contexts, so that running handlers can
// finish.
func newSubscription(ctx context.Context, t *Transport, config transport.SubscriberConfig, topic, instance string) (*subscription, error) {
	s := &subscription{
		transport: t,
		config:    config,
		settings:  t.config.consumer(config.Consumer),
		topic:     topic,
		tracing:   tracing.NewDeliveries(t.config.TracerProvider, t.config.Propagator, scope, "kafka", topic, config.Consumer),
		log:       t.log.With(slog.String("topic", topic), slog.String("consumer", config.Consumer)),
		out:       make(chan *message.Message, config.Concurrency),
		slots:     make(chan struct{}, config.Concurrency),
		stop:      make(chan struct{}),
		intakes:   map[int32]*intake{},
		topicGone: func() {},
	}
	var err error
	if s.observer, err = newGroupObserver(t.config.MeterProvider, topic, config.Consumer); err != nil {
		return nil, err
	}
	connections, disconnect := context.WithCancel(t.life)
	client, err := t.consumerClient(connections, config.Consumer, instance)
	if err != nil {
		disconnect()
		s.observer.stop()
		return nil, err
	}
	if s.group, err = sarama.NewConsumerGroupFromClient(config.Consumer, client); err != nil {
		err = errors.Join(err, client.Close())
		disconnect()
		s.observer.stop()
		return nil, err
	}
	s.client, s.disconnect = client, disconnect
	s.messages, s.abandon = context.WithCancel(context.WithoutCancel(ctx))
	if t.config.Delivery == Transactional {
		if s.committer, err = newCommitter(ctx, connections, t, config.Consumer, topic, instance, s.refuse); err != nil {
			s.abandon()
			err = errors.Join(err, s.group.Close(), client.Close())
			disconnect()
			s.observer.stop()
			return nil, err
		}
	}
	return s, nil
}

// run delivers until ctx ends or closing is closed, and returns after the last handler has ended and the group is left.
func (s *subscription) run(ctx context.Context, closing <-chan struct{}) {
	defer s.abandon()
	defer s.observer.stop()
	consuming, leave := context.WithCancel(context.Background())
	defer leave()
	var member sync.WaitGroup
	member.Go(func() { s.consume(consuming) })
	member.Go(s.logErrors)

	select {
	case <-ctx.Done():
	case <-closing:
	}
	close(s.stop)
	s.finish()
	timer := time.AfterFunc(s.transport.config.DrainTimeout, s.abandon)
	defer timer.Stop()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.running.Wait()
	}()
	// Slow handlers end outside of the group: who holds its partitions for them keeps all that is published there waiting.
	select {
	case <-drained:
	case <-time.After(leaveTimeout):
	}
	leave()
	// In an outage sarama would try for longer. Without connections it gets its errors.
	late := time.AfterFunc(flushTimeout, s.disconnect)
	defer late.Stop()
	err := s.group.Close()
	if s.committer != nil {
		err = errors.Join(err, s.committer.close())
	}
	if err := errors.Join(err, s.client.Close()); err != nil {
		s.log.Warn("leaving the group: offsets may not be committed, and their messages be delivered again", slog.Any("error", err))
	}
	s.disconnect()
	member.Wait()
	<-drained
}

// consume is a member of the group until ctx ends. It goes on over every failure.
func (s *subscription) consume(ctx context.Context) {
	retry := firstJoinRetry
	for {
		began := time.Now()
		rebalanced, err := s.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if rebalanced || time.Since(began) > lastJoinRetry {
			retry = firstJoinRetry // it had worked
		}
		if rebalanced {
			continue // the other members wait
		}
		if err != nil {
			s.log.Error("the group's session ended", slog.Any("error", err), slog.Duration("retry_in", retry))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry):
		}
		retry = min(2*retry, lastJoinRetry)
		if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
			s.transport.topics.forget(s.topic)
			if err := s.transport.topics.ensure(ctx, s.topic); err != nil {
				s.log.Error("creating the topic again", slog.Any("error", err))
			}
		}
	}
}

// session is a member of the group until a rebalance, which it tells, or a failure. A topic that has gone ends it too:
// sarama would go on at the same offset of the next topic of that name.
func (s *subscription) session(ctx context.Context) (rebalanced bool, err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	s.mu.Lock()
	s.topicGone = func() { end(sarama.ErrUnknownTopicOrPartition) }
	s.mu.Unlock()
	h := &handler{subscription: s}
	err = s.group.Consume(ctx, []string{s.topic}, h)
	if cause := context.Cause(ctx); errors.Is(cause, sarama.ErrUnknownTopicOrPartition) {
		return false, cause
	}
	return h.rebalanced && err == nil, err
}

// logErrors returns when the group is closed.
func (s *subscription) logErrors() {
	for err := range s.group.Errors() {
		if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
			s.mu.Lock()
			s.topicGone()
			s.mu.Unlock()
		}
		s.log.Warn("consuming", slog.Any("error", err))
		s.observer.failed(s.messages)
	}
}

func (s *subscription) stopped() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

func (s *subscription) intake(number int32) *intake {
	s.mu.Lock()
	defer s.mu.Unlock()
	in, ok := s.intakes[number]
	if !ok {
		in = newIntake(s, number)
		s.intakes[number] = in
	}
	return in
}

// handler implements sarama.ConsumerGroupHandler, for one session.
type handler struct {
	*subscription
	rebalanced bool // why the session has ended
}

// Setup implements sarama.ConsumerGroupHandler.
func (*handler) Setup(sarama.ConsumerGroupSession) error { return nil }

// Cleanup implements sarama.ConsumerGroupHandler.
func (h *handler) Cleanup(session sarama.ConsumerGroupSession) error {
	cause := context.Cause(session.Context())
	h.rebalanced = errors.Is(cause, sarama.ErrRebalanceInProgress) || errors.Is(cause, sarama.ErrSessionPartitionCountChanged)
	return nil
}

// ConsumeClaim implements sarama.ConsumerGroupHandler.
func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	h.intake(claim.Partition()).consume(session, claim)
	return nil
}
