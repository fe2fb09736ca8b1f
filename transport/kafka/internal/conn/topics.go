package conn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/sequence"
	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

const (
	// SettleTimeout bounds the wait until a new topic's partitions have leaders.
	SettleTimeout = 30 * time.Second
	settlePause   = 20 * time.Millisecond
	// DefaultMaxMessageBytes is the default of the brokers' message.max.bytes.
	DefaultMaxMessageBytes = 1<<20 + 12
	maxMessageBytes        = "max.message.bytes"
)

// TopicSettings says what to do about missing topics.
type TopicSettings struct {
	Create            bool // otherwise a missing topic is an error
	Partitions        int32
	ReplicationFactor int16
	Settings          map[string]string
}

// Topics creates or checks topics, as its settings say. It remembers existing topics and their size limits, but not failures. It is safe
// for concurrent use.
type Topics struct {
	client   sarama.Client
	settings TopicSettings
	log      *slog.Logger
	life     context.Context
	known    sync.Map // topic → its max.message.bytes, an int

	mu      sync.Mutex
	closed  bool
	flights map[string]*flight
	running sync.WaitGroup
}

// flight is one check of a topic. Concurrent callers share it.
type flight struct {
	done chan struct{}
	err  error
}

// NewTopics returns a Topics that works until life ends.
func NewTopics(life context.Context, client sarama.Client, settings TopicSettings, log *slog.Logger) *Topics {
	return &Topics{life: life, client: client, settings: settings, log: log, flights: map[string]*flight{}}
}

// Ensure makes sure that the topic exists. The work goes on if a caller's ctx ends.
func (t *Topics) Ensure(ctx context.Context, topic string) error {
	if _, ok := t.known.Load(topic); ok {
		return nil
	}
	if err := wire.CheckTopic(topic); err != nil {
		return err
	}
	f, err := t.join(topic)
	if err != nil {
		return err
	}
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *Topics) join(topic string) (*flight, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, transport.ErrClosed
	}
	if f, ok := t.flights[topic]; ok {
		return f, nil
	}
	f := &flight{done: make(chan struct{})}
	t.flights[topic] = f
	t.running.Go(func() {
		f.err = Connected(t.life, func() error { return t.settle(topic) })
		t.mu.Lock()
		delete(t.flights, topic)
		t.mu.Unlock()
		close(f.done)
	})
	return f, nil
}

// Limit returns the largest batch, in bytes, for a topic that Ensure has checked.
func (t *Topics) Limit(topic string) int {
	if limit, ok := t.known.Load(topic); ok {
		return limit.(int)
	}
	return usable(DefaultMaxMessageBytes)
}

// EnsureAgain is Ensure after a broker has reported that the topic is unknown: it was deleted meanwhile.
func (t *Topics) EnsureAgain(ctx context.Context, topic string) error {
	t.known.Delete(topic)
	return t.Ensure(ctx, topic)
}

// Stop refuses new work and returns after the last goroutine.
func (t *Topics) Stop() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.running.Wait()
}

// settle looks up the topic, creates it if that is configured, and asks for its message size limit.
func (t *Topics) settle(topic string) error {
	err := t.client.RefreshMetadata(topic)
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		if err := t.create(topic); err != nil {
			return err
		}
		err = t.await(topic)
	}
	if err != nil && !errors.Is(err, sarama.ErrLeaderNotAvailable) { // some partitions are unavailable; the others work
		return fmt.Errorf("look up topic %s: %w", topic, err)
	}
	limit, err := t.ask(topic)
	if err != nil {
		return fmt.Errorf("ask for %s of topic %s: %w", maxMessageBytes, topic, err)
	}
	t.known.Store(topic, limit)
	return nil
}

func (t *Topics) create(topic string) error {
	c := t.settings
	if !c.Create {
		return fmt.Errorf("%w: create %s (kafka-topics.sh --create --topic %s --partitions … --replication-factor …), or let Config.Topics.Missing be CreateMissing", sequence.ErrTopicMissing, topic, topic)
	}
	admin, err := sarama.NewClusterAdminFromClient(t.client)
	if err != nil {
		return fmt.Errorf("create topic %s: %w", topic, err)
	}
	settings := make(map[string]*string, len(c.Settings))
	for name, value := range c.Settings {
		settings[name] = &value
	}
	err = admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: c.Partitions, ReplicationFactor: c.ReplicationFactor, ConfigEntries: settings}, false)
	switch {
	case errors.Is(err, sarama.ErrTopicAlreadyExists): // another process was faster
	case errors.Is(err, sarama.ErrTopicAuthorizationFailed), errors.Is(err, sarama.ErrClusterAuthorizationFailed):
		return advisedError{fmt.Errorf("create topic %s: allow CREATE on it to this user, or create it and let Config.Topics.Missing be CheckOnly: %w", topic, err)}
	case errors.Is(err, sarama.ErrInvalidReplicationFactor):
		return fmt.Errorf("create topic %s: %s is more than there are brokers: lower it, or start more brokers: %w", topic, replicas(c.ReplicationFactor), err)
	case errors.Is(err, sarama.ErrInvalidConfig):
		return fmt.Errorf("create topic %s: the brokers refuse a name or a value in Config.Topics.Settings: %w", topic, err)
	case err != nil:
		return fmt.Errorf("create topic %s: %w", topic, err)
	default:
		t.log.Info("created a topic", slog.String("topic", topic), slog.Int("partitions", int(c.Partitions)))
	}
	return nil
}

// replicas says where a replication factor comes from.
func replicas(factor int16) string {
	if factor < 1 {
		return "the brokers' default.replication.factor, which Config.Topics.ReplicationFactor may replace,"
	}
	return fmt.Sprintf("Config.Topics.ReplicationFactor, %d,", factor)
}

// await waits until each partition of a new topic has a leader: brokers learn of it one by one.
func (t *Topics) await(topic string) error {
	ctx, cancel := context.WithTimeout(t.life, SettleTimeout)
	defer cancel()
	for {
		err := t.client.RefreshMetadata(topic)
		if err == nil {
			return nil
		}
		timer := time.NewTimer(settlePause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// ask returns how many bytes a batch may have. Without the right to ask, it assumes the brokers' default. A broker with a lower limit
// rejects what is too large.
func (t *Topics) ask(topic string) (int, error) {
	value, known, refusal, err := TopicSetting(t.client, topic, maxMessageBytes)
	if err != nil {
		return 0, err
	}
	if known {
		limit, err := strconv.Atoi(value)
		return usable(limit), err
	}
	t.log.Info("the brokers do not tell how large messages may be, their default is assumed", slog.String("topic", topic), slog.Any("error", refusal))
	return usable(DefaultMaxMessageBytes), nil
}

// usable returns how many bytes a batch may have before compression, because data that cannot be compressed grows a little.
func usable(limit int) int { return limit - limit/256 - 64 }
