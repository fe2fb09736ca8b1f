package group

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/internal/tracing"
	"github.com/millrace-go/millrace/transport/kafka/internal/backoff"
	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
)

// errTopicsChanged ends a session when the pattern matches other topics than before.
var errTopicsChanged = errors.New("other topics match the pattern")

// Pattern chooses topics.
type Pattern struct {
	*regexp.Regexp
	Without func(topic string) bool // topics to leave out
}

// Topics returns the topics that the pattern matches now, sorted, without Kafka's internal topics.
func (p *Pattern) Topics(client sarama.Client) ([]string, error) {
	all, err := conn.TopicNames(client)
	if err != nil {
		return nil, fmt.Errorf("list the topics: %w", err)
	}
	matching := slices.DeleteFunc(all, func(topic string) bool { return !p.MatchString(topic) || p.Without(topic) })
	slices.Sort(matching)
	return matching, nil
}

// awaitTopics waits until the pattern matches topics, and returns them. It returns early if ctx ends.
func (s *Subscription) awaitTopics(ctx context.Context) ([]string, error) {
	for {
		topics, err := s.config.Pattern.Topics(s.client)
		if err != nil || len(topics) > 0 {
			return topics, err
		}
		s.own.log.Info("no topic matches the pattern yet", slog.Duration("look_again_in", partitionsAge))
		if !backoff.Sleep(ctx, partitionsAge) {
			return nil, nil
		}
	}
}

// watchTopics ends a session when the pattern matches other topics than these. A failed request changes nothing.
func (s *Subscription) watchTopics(ctx context.Context, topics []string, end context.CancelCauseFunc) {
	for backoff.Sleep(ctx, partitionsAge) {
		now, err := s.config.Pattern.Topics(s.client)
		switch {
		case err != nil:
			s.own.log.Warn("looking for topics that match the pattern", slog.Any("error", err))
		case !slices.Equal(now, topics):
			s.own.log.Info("other topics match the pattern", slog.Any("topics", now))
			end(errTopicsChanged)
			return
		}
	}
}

// topicConsumer is a subscription's state of one topic.
type topicConsumer struct {
	topic      string
	log        *slog.Logger
	observer   *topicObserver
	tracing    tracing.Deliveries
	partitions map[int32]*partitionConsumer // guarded by the subscription's mu
}

func (s *Subscription) newTopicConsumer(topic string) *topicConsumer {
	c := s.config
	return &topicConsumer{
		topic:      topic,
		log:        c.Log.With(slog.String("topic", topic), slog.String("consumer", c.Consumer)),
		observer:   s.meters.of(topic),
		tracing:    tracing.NewDeliveries(c.TracerProvider, c.Propagator, conn.Scope, "kafka", topic, c.Consumer),
		partitions: map[int32]*partitionConsumer{},
	}
}

// of returns the subscription's state of the topic.
func (s *Subscription) of(name string) *topicConsumer {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.topics[name]
	if !ok {
		t = s.newTopicConsumer(name)
		s.topics[name] = t
	}
	return t
}
