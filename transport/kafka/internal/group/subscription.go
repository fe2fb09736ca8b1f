// Package group consumes. A subscription is a member of a consumer group, with everything between the group and the handlers.
package group

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/lane"
	"github.com/millrace-go/millrace/transport/kafka/internal/produce"
	"github.com/millrace-go/millrace/transport/kafka/internal/txn"
)

const (
	// handOverTimeout is how long a partition that moves to another member waits for the handlers that have messages of it. Without it,
	// every rebalance and every stop would redeliver all of those. A slow handler does not delay the partition for longer.
	handOverTimeout = time.Second
	// leaveTimeout is the same for a subscription that is closed, for all its partitions. It is longer, because this process decides when
	// that rebalance begins.
	leaveTimeout = 2 * time.Second
	// The first and the longest wait before the group is joined again after a failure. It doubles each time.
	firstJoinRetry = 100 * time.Millisecond
	lastJoinRetry  = 10 * time.Second
)

// Subscription is one call of Subscribe: a member of the consumer's group, with everything between it and the handlers.
type Subscription struct {
	shared Shared
	config Config
	own    *topicConsumer // of the topic, or of the pattern
	meters *observer

	client     sarama.Client
	disconnect context.CancelFunc // ends the client's connections
	group      sarama.ConsumerGroup
	committer  *txn.Committer // for transactional delivery

	newest chan struct{} // closed once the member has committed where its group begins; nil: that is not its task
	began  bool          // newest is closed

	sending  sync.RWMutex          // held for reading while sending to out, for writing to close it
	out      chan *message.Message // closed after stop; its capacity is the number of slots
	sent     atomic.Int64          // the number of messages sent to out
	slots    chan struct{}         // one value per delivered message that is neither acked nor nacked
	stop     chan struct{}         // closed when ctx or the subscriber ends
	messages context.Context       // parent of the messages' contexts
	abandon  context.CancelFunc    // cancels messages
	running  sync.WaitGroup        // one per delivered message that is not settled; Add only while sending

	mu        sync.Mutex
	topics    map[string]*topicConsumer // of which this member has had partitions
	topicGone func()                    // ends the session
}

// Shared is what the subscriptions of a transport share.
type Shared struct {
	Life      context.Context // of every connection
	Cluster   *conn.Cluster
	Client    sarama.Client // for everything except consuming
	Topics    *conn.Topics
	Publisher *produce.Publisher
	Budget    *Budget
	Gate      *Gate // of the process
}

// Config is how a subscription consumes, as kafka.ConsumerConfig describes it.
type Config struct {
	transport.SubscriberConfig
	Topic, Instance string
	Pattern         *Pattern // if Topic is one
	EventID         transport.EventIDSource
	Policy          lane.Policy
	DeadLetters     string // the dead-letter topic, or ""
	Prefetch        int
	SessionTimeout  time.Duration
	Strategies      []sarama.BalanceStrategy // offered by the member, the preferred one first
	DrainTimeout    time.Duration
	Newest          []string    // topics; the member commits where its group begins in them
	Transactions    *txn.Config // nil: at-least-once delivery

	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
	Propagator     propagation.TextMapPropagator
	Log            *slog.Logger
}

// New connects to the group. ctx bounds only the connecting: its end does not cancel the messages' contexts, so that running handlers can
// finish.
func New(ctx context.Context, shared Shared, config Config) (_ *Subscription, err error) {
	s := &Subscription{
		shared:    shared,
		config:    config,
		out:       make(chan *message.Message, config.Concurrency),
		slots:     make(chan struct{}, config.Concurrency),
		stop:      make(chan struct{}),
		topics:    map[string]*topicConsumer{},
		topicGone: func() {},
	}
	if len(config.Newest) > 0 {
		s.newest = make(chan struct{})
	}
	if s.meters, err = newObserver(config.MeterProvider, config.Consumer); err != nil {
		return nil, err
	}
	if s.own = s.newTopicConsumer(config.Topic); config.Pattern == nil {
		s.topics[config.Topic] = s.own
	}
	var connections context.Context
	connections, s.disconnect = context.WithCancel(shared.Life)
	s.messages, s.abandon = context.WithCancel(context.WithoutCancel(ctx))
	hurry := context.AfterFunc(ctx, s.disconnect) // running requests then fail at once
	err = s.connect(ctx, connections)
	if !hurry() {
		err = ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(err, s.discard())
	}
	return s, nil
}

// Messages returns the channel of delivered messages. It is closed after Run's ctx has ended.
func (s *Subscription) Messages() <-chan *message.Message { return s.out }

// connect makes the clients. Their connections end with connections.
func (s *Subscription) connect(ctx, connections context.Context) (err error) {
	if s.client, err = s.newClient(ctx, connections); err != nil {
		return err
	}
	if err := s.shared.Cluster.MayJoin(ctx, s.client, s.config.Consumer); err != nil {
		return err
	}
	if s.group, err = s.newGroup(connections); err != nil {
		return err
	}
	if s.config.Transactions != nil {
		c := *s.config.Transactions
		c.Consumer, c.Topic, c.Instance, c.Log, c.Refuse = s.config.Consumer, s.config.Topic, s.config.Instance, s.own.log, s.refuse
		s.committer, err = txn.New(ctx, connections, s.shared.Cluster, s.shared.Topics, c)
	}
	return err
}

// discard undoes New.
func (s *Subscription) discard() (err error) {
	s.abandon()
	s.disconnect()
	if s.committer != nil {
		err = s.committer.Close()
	}
	if s.group != nil {
		err = errors.Join(err, s.group.Close())
	}
	if s.client != nil {
		err = errors.Join(err, s.client.Close())
	}
	s.meters.stop()
	return err
}

// Run delivers until ctx ends or closing is closed. It returns after the last handler has ended and the member has left the group.
func (s *Subscription) Run(ctx context.Context, closing <-chan struct{}) {
	defer s.abandon()
	defer s.meters.stop()
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
	timer := time.AfterFunc(s.config.DrainTimeout, s.abandon)
	defer timer.Stop()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.running.Wait()
	}()
	// Slow handlers finish after the member has left the group: keeping its partitions would delay all messages published there.
	select {
	case <-drained:
	case <-time.After(leaveTimeout):
	}
	s.flush()
	leave()
	// During an outage sarama would retry for longer. Without connections it fails.
	late := time.AfterFunc(conn.FlushTimeout, s.disconnect)
	defer late.Stop()
	err := s.group.Close()
	if s.committer != nil {
		err = errors.Join(err, s.committer.Close())
	}
	if err := errors.Join(err, s.client.Close()); err != nil {
		s.own.log.Warn("leaving the group: offsets may not be committed, and their messages be delivered again", slog.Any("error", err))
	}
	s.disconnect()
	member.Wait()
	<-drained
}

// flush commits what is done before the member leaves the group, while it still learns its next generation. If a rebalance changes the
// generation while the member leaves, a commit in the old one would be refused.
func (s *Subscription) flush() {
	s.mu.Lock()
	var partitions []*partitionConsumer
	for _, t := range s.topics {
		partitions = slices.AppendSeq(partitions, maps.Values(t.partitions))
	}
	s.mu.Unlock()
	var flushing sync.WaitGroup
	for _, p := range partitions {
		p.mu.Lock()
		t := p.txn
		p.mu.Unlock()
		if t != nil {
			p.giveBack()
			flushing.Go(func() { t.Flush(leaveTimeout) })
		}
	}
	flushing.Wait()
}

// consume is a member of the group until ctx ends. It continues after every failure.
func (s *Subscription) consume(ctx context.Context) {
	retry := firstJoinRetry
	for {
		began := time.Now()
		rebalanced, err := s.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if rebalanced || time.Since(began) > lastJoinRetry {
			retry = firstJoinRetry // the session had worked
		}
		if rebalanced {
			continue // the other members wait
		}
		if err != nil {
			s.own.log.Error("the group's session ended", slog.Any("error", conn.WithRemedy(err, s.config.Consumer, s.config.Topic)), slog.Duration("retry_in", retry))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry):
		}
		retry = min(2*retry, lastJoinRetry)
		if errors.Is(err, sarama.ErrUnknownTopicOrPartition) && s.config.Pattern == nil {
			if err := s.shared.Topics.EnsureAgain(ctx, s.config.Topic); err != nil {
				s.own.log.Error("creating the topic again", slog.Any("error", err))
			}
		}
	}
}

// session is a member of the group until a failure or a rebalance, which it reports. It also ends if a topic is deleted: sarama would
// continue at the same offset of the next topic with that name.
func (s *Subscription) session(ctx context.Context) (rebalanced bool, err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	s.mu.Lock()
	s.topicGone = func() { end(sarama.ErrUnknownTopicOrPartition) }
	s.mu.Unlock()
	h, topics := &handler{Subscription: s}, []string{s.config.Topic}
	if s.config.Pattern != nil {
		if topics, err = s.awaitTopics(ctx); err != nil || len(topics) == 0 {
			return false, err
		}
		var watching sync.WaitGroup
		watching.Go(func() { s.watchTopics(ctx, topics, end) })
		defer watching.Wait()
		defer end(nil)
	}
	err = s.group.Consume(ctx, topics, h)
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, sarama.ErrUnknownTopicOrPartition):
		return false, cause
	case errors.Is(cause, errTopicsChanged):
		return true, nil
	}
	return h.rebalanced && err == nil, err
}

func (s *Subscription) stopped() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

func (s *Subscription) partition(topic string, number int32) *partitionConsumer {
	of := s.of(topic)
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := of.partitions[number]
	if !ok {
		p = newPartitionConsumer(s, of, number)
		of.partitions[number] = p
	}
	return p
}

// handler implements sarama.ConsumerGroupHandler, for one session.
type handler struct {
	*Subscription
	rebalanced bool // the session ended because of a rebalance
}

// Setup implements sarama.ConsumerGroupHandler.
func (h *handler) Setup(session sarama.ConsumerGroupSession) error {
	if h.newest == nil || h.began {
		return nil
	}
	if err := h.commitNewest(session); err != nil {
		return err
	}
	h.began = true
	close(h.newest)
	return nil
}

// Cleanup implements sarama.ConsumerGroupHandler.
func (h *handler) Cleanup(session sarama.ConsumerGroupSession) error {
	cause := context.Cause(session.Context())
	h.rebalanced = errors.Is(cause, sarama.ErrRebalanceInProgress) || errors.Is(cause, sarama.ErrSessionPartitionCountChanged)
	return nil
}

// ConsumeClaim implements sarama.ConsumerGroupHandler.
func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	topic, number := claim.Topic(), claim.Partition()
	var note string // of the crash guard
	if h.committer != nil {
		var err error
		if note, err = conn.GroupNote(h.client, h.config.Consumer, topic, number); err != nil {
			return err
		}
	}
	h.partition(topic, number).consume(session, claim, note)
	return nil
}
