// Package kafka is the transport for Apache Kafka.
//
// An event travels so that watermill-kafka/v3 reads it and the other way round: its ID is the header
// "_watermill_message_uuid", its metadata are headers, and its key is the record's key. The consumer's name is its group.
// A nil payload is a null value, a tombstone: a compacted topic deletes the key. An empty payload is an empty value.
// Topics are created when they are first used, or checked, as Config.Topics says.
//
// A topic that begins with ^ is a pattern when it is given to Subscribe: a regular expression of Go's syntax
// (https://pkg.go.dev/regexp/syntax), such as `^orders\..*`. It matches from the beginning of the name; without a $ the name may go
// on. One member of the group consumes all topics that match, and that this account may see. It looks for new ones every 30 s, and
// reads those from their beginning. It leaves out Kafka's internal topics, those named by transport.DeadLetterTopic, the
// dead-letter topics in the Config, and the notes of relays. transport.TopicOf tells the topic of a message.
package kafka

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/group"
	"github.com/millrace-go/millrace/transport/kafka/internal/meter"
	"github.com/millrace-go/millrace/transport/kafka/internal/produce"
)

// Transport is a connection to a Kafka cluster. All methods may be called concurrently.
type Transport struct {
	config    Config
	log       *slog.Logger
	life      context.Context // of every connection
	end       context.CancelFunc
	cluster   *conn.Cluster
	client    sarama.Client // for all but consuming
	topics    *conn.Topics
	notes     *conn.Topics // of transactions
	budget    *group.Budget
	publisher *produce.Publisher

	mu          sync.Mutex
	closed      bool
	subscribers map[*subscriber]struct{}
	instances   map[string]bool // of static members, by consumer and name

	closeOnce sync.Once
	closeErr  error
}

var _ transport.Transport = (*Transport)(nil)

// New connects to Kafka: one of the brokers must answer. ctx bounds the connecting only; the transport lives until Close.
func New(ctx context.Context, config Config) (*Transport, error) {
	config = config.WithDefaults()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	requests, err := meter.New(config.MeterProvider, conn.Scope)
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	cluster := conn.New(life, config.connection(requests))
	client, err := cluster.Connect(ctx)
	if err != nil {
		end()
		return nil, err
	}
	t := &Transport{
		config:      config,
		log:         config.Logger.With(slog.String("transport", "kafka")),
		life:        life,
		end:         end,
		cluster:     cluster,
		client:      client,
		budget:      group.NewBudget(config.MaxBufferedBytes),
		subscribers: map[*subscriber]struct{}{},
		instances:   map[string]bool{},
	}
	t.topics = conn.NewTopics(life, client, config.Topics.settings(), t.log)
	t.notes = conn.NewTopics(life, client, config.Topics.notes(), t.log)
	t.publisher, err = produce.New(life, client, t.topics, config.publishing(t.log))
	if err != nil {
		end()
		return nil, errors.Join(err, client.Close())
	}
	return t, nil
}

// Name implements transport.Transport.
func (t *Transport) Name() string { return "kafka" }

// Features implements transport.Transport. Attempts are counted in memory: they begin anew when a partition goes to
// another process.
func (t *Transport) Features() transport.Features {
	return transport.Features{Ordered: true, Attempts: true, DelayedRedelivery: true, Persistent: true, Limits: t.config.limits()}
}

// Publisher implements transport.Transport. The publisher implements transport.BatchPublisher, and sends at once; but that
// of a transport with Transactional delivery does not: it takes messages whose contexts are those of consumed ones, or
// derived from them, and they are sent in the transactions of those. All others it refuses with transport.ErrNoUnit, lest
// they be sent in no transaction by accident.
func (t *Transport) Publisher() (message.Publisher, error) {
	if t.config.Delivery != Transactional {
		return t.PlainPublisher()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, transport.ErrClosed
	}
	return &produce.UnitPublisher{Publisher: t.publisher}, nil
}

// PlainPublisher returns the publisher that sends at once, whatever the delivery of subscribers is: for relays, and for
// what is published outside of handlers. It implements transport.BatchPublisher and transport.TransactionalPublisher.
func (t *Transport) PlainPublisher() (message.Publisher, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, transport.ErrClosed
	}
	return plainPublisher{t.publisher, t}, nil
}

// Subscriber implements transport.Transport. The subscriber implements message.SubscribeInitializer, which creates the
// topic. Several calls of Subscribe for one topic share its partitions.
func (t *Transport) Subscriber(config transport.SubscriberConfig) (message.Subscriber, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, transport.ErrClosed
	}
	s := newSubscriber(t, config.WithDefaults())
	t.subscribers[s] = struct{}{}
	return s, nil
}

// Close implements transport.Transport. It takes no longer than the drain timeout and a few seconds: what cannot be
// flushed by then fails.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closed = true
	subscribers := make([]*subscriber, 0, len(t.subscribers))
	for s := range t.subscribers {
		subscribers = append(subscribers, s)
	}
	t.mu.Unlock()

	t.closeOnce.Do(func() {
		// In an outage what is left would try for longer. Without connections it gets its errors.
		late := time.AfterFunc(t.config.DrainTimeout+conn.FlushTimeout, t.end)
		defer late.Stop()
		defer func() {
			t.end()
			t.cluster.Wait()
		}()
		// All at once: one drain timeout for all of them, not one for each. The publisher goes last, because running
		// handlers may publish.
		var closing sync.WaitGroup
		for _, s := range subscribers {
			closing.Go(func() { _ = s.Close() })
		}
		closing.Wait()
		t.publisher.Stop()
		t.topics.Stop()
		t.notes.Stop()
		t.closeErr = t.client.Close()
	})
	return t.closeErr
}

// gate is that of the process: what a message kills is all of it, whichever transport the message came by.
var gate group.Gate

// shared is what subscriptions share.
func (t *Transport) shared() group.Shared {
	return group.Shared{Life: t.life, Cluster: t.cluster, Client: t.client, Topics: t.topics, Publisher: t.publisher, Budget: t.budget, Gate: &gate}
}

func (t *Transport) forget(s *subscriber) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.subscribers, s)
}

// Ping implements transport.Pinger: one of the brokers lets us in, over a new connection.
func (t *Transport) Ping(ctx context.Context) error {
	return t.cluster.Ping(ctx)
}
