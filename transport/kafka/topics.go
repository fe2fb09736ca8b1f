package kafka

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
)

const (
	// settleTimeout bounds the time that a new topic's partitions take to get their leaders.
	settleTimeout = 30 * time.Second
	settlePause   = 20 * time.Millisecond
	// defaultMaxMessageBytes is the brokers' message.max.bytes.
	defaultMaxMessageBytes = 1<<20 + 12
	maxMessageBytes        = "max.message.bytes"
)

// errTopicMissing is of a topic that is not there and is not to be created.
var errTopicMissing = errors.New("the topic is missing")

// topics creates or checks topics, as Config.Topics says, and remembers those that are well, and what they take. Failures
// are not remembered. It is safe for concurrent use.
type topics struct {
	client sarama.Client
	config Config
	log    *slog.Logger
	life   context.Context
	known  sync.Map // topic → its max.message.bytes, an int

	mu      sync.Mutex
	closed  bool
	flights map[string]*flight
	running sync.WaitGroup
}

// flight is one look at a topic, which all that ask for it meanwhile share.
type flight struct {
	done chan struct{}
	err  error
}

func newTopics(life context.Context, client sarama.Client, config Config, log *slog.Logger) *topics {
	return &topics{life: life, client: client, config: config, log: log, flights: map[string]*flight{}}
}

// ensure sees to it that the topic exists. The work outlives a caller whose ctx ends.
func (t *topics) ensure(ctx context.Context, topic string) error {
	if _, ok := t.known.Load(topic); ok {
		return nil
	}
	if err := checkTopic(topic); err != nil {
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

func (t *topics) join(topic string) (*flight, error) {
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
		f.err = t.settle(topic)
		t.mu.Lock()
		delete(t.flights, topic)
		t.mu.Unlock()
		close(f.done)
	})
	return f, nil
}

// limit is what a batch may have of a topic that ensure has seen.
func (t *topics) limit(topic string) int {
	if limit, ok := t.known.Load(topic); ok {
		return limit.(int)
	}
	return usable(defaultMaxMessageBytes)
}

// forget makes the next use look again, after a broker has said that the topic is unknown.
func (t *topics) forget(topic string) { t.known.Delete(topic) }

// stop refuses new work and returns after the last goroutine.
func (t *topics) stop() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.running.Wait()
}

// settle looks the topic up, creates it where that is wanted, and asks how large its messages may be.
func (t *topics) settle(topic string) error {
	err := t.client.RefreshMetadata(topic)
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		if err := t.create(topic); err != nil {
			return err
		}
		err = t.await(topic)
	}
	if err != nil && !errors.Is(err, sarama.ErrLeaderNotAvailable) { // some partitions are out of reach; the others work
		return fmt.Errorf("look up topic %s: %w", topic, err)
	}
	limit, err := t.ask(topic)
	if err != nil {
		return fmt.Errorf("ask for %s of topic %s: %w", maxMessageBytes, topic, err)
	}
	t.known.Store(topic, limit)
	return nil
}

func (t *topics) create(topic string) error {
	c := t.config.Topics
	if c.Missing == CheckOnly {
		return fmt.Errorf("%w: create %s (kafka-topics.sh --create --topic %s --partitions … --replication-factor …), or let Config.Topics.Missing be CreateMissing", errTopicMissing, topic, topic)
	}
	admin, err := sarama.NewClusterAdminFromClient(t.client)
	if err != nil {
		return fmt.Errorf("create topic %s: %w", topic, err)
	}
	err = admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: c.Partitions, ReplicationFactor: c.ReplicationFactor}, false)
	switch {
	case errors.Is(err, sarama.ErrTopicAlreadyExists): // another process was faster
	case errors.Is(err, sarama.ErrTopicAuthorizationFailed), errors.Is(err, sarama.ErrClusterAuthorizationFailed):
		return fmt.Errorf("create topic %s: allow CREATE on it to this user, or create it and let Config.Topics.Missing be CheckOnly: %w", topic, err)
	case err != nil:
		return fmt.Errorf("create topic %s: %w", topic, err)
	default:
		t.log.Info("created a topic", slog.String("topic", topic), slog.Int("partitions", int(c.Partitions)))
	}
	return nil
}

// await waits until each partition of a new topic has a leader: brokers learn of it one by one.
func (t *topics) await(topic string) error {
	ctx, cancel := context.WithTimeout(t.life, settleTimeout)
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

// ask returns how many bytes a batch may have. Who may not ask takes it to be the brokers' default: a broker that takes
// less refuses what is too large.
func (t *topics) ask(topic string) (int, error) {
	admin, err := sarama.NewClusterAdminFromClient(t.client)
	if err != nil {
		return 0, err
	}
	results, err := admin.DescribeConfigs([]*sarama.ConfigResource{{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{maxMessageBytes}}}, sarama.DescribeConfigsOptions{})
	if err != nil {
		return 0, err
	}
	for _, result := range results {
		for _, entry := range result.Configs {
			if entry.Name == maxMessageBytes {
				limit, err := strconv.Atoi(entry.Value)
				return usable(limit), err
			}
		}
		err = result.ErrorCode
	}
	t.log.Info("the brokers do not tell how large messages may be, their default is assumed", slog.String("topic", topic), slog.Any("error", err))
	return usable(defaultMaxMessageBytes), nil
}

// usable is how many bytes a batch may have before it is compressed: what cannot be compressed grows a little.
func usable(limit int) int { return limit - limit/256 - 64 }
