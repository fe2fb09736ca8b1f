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

// errTopicsChanged ends a session whose topics are no longer those that the pattern matches.
var errTopicsChanged = errors.New("other topics match the pattern")

// Pattern chooses topics.
type Pattern struct {
	*regexp.Regexp
	Without func(topic string) bool // topics that it leaves out
}

// Topics returns the topics that the pattern matches now, in order. Kafka's internal topics are not among them.
func (p *Pattern) Topics(client sarama.Client) ([]string, error) {
	all, err := conn.TopicNames(client)
	if err != nil {
		return nil, fmt.Errorf("list the topics: %w", err)
	}
	matching := slices.DeleteFunc(all, func(topic string) bool { return !p.MatchString(topic) || p.Without(topic) })
	slices.Sort(matching)
	return matching, nil
}

// awaitTopics returns the topics that the pattern matches, when there are some or ctx has ended.
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

// watchTopics ends a session when the pattern matches other topics than those. An answer that cannot be had changes nothing.
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

// topicConsumer is what a subscription has of one topic.
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

// of returns what the subscription has of the topic.
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
