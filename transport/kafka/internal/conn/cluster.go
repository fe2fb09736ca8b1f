package conn

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// seedAge is for how long a broker that has answered is taken to answer.
const seedAge = 5 * time.Second

// Cluster is the brokers of a configuration. It is safe for concurrent use.
type Cluster struct {
	config Config
	life   context.Context
	asking sync.WaitGroup // requests that nobody may wait for any more

	turn   chan struct{} // holds one; who takes it may look
	latest string        // the broker that has answered
	at     time.Time
}

// New returns a cluster whose connections end with life.
func New(life context.Context, config Config) *Cluster {
	if config.SASL.TokenURL != "" {
		config.SASL.Token = newTokens(life, config.SASL)
	}
	return &Cluster{config: config, life: life, turn: make(chan struct{}, 1)}
}

// Connect returns the client for all but consuming, or what is wrong with each broker. ctx bounds the connecting only.
func (c *Cluster) Connect(ctx context.Context) (sarama.Client, error) {
	_, err := c.first(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to Kafka: %w", err)
	}
	client, err := c.Client(ctx, c.life, func(s *sarama.Config) {
		s.Metadata.Retry.Max = 1 // what waits for the answer has its own patience
		s.Metadata.RefreshFrequency = MetadataInterval
	})
	if err != nil {
		return nil, fmt.Errorf("connect to Kafka: %w", err)
	}
	return client, nil
}

// Client returns a client of its own for what would delay others. It begins with a broker that answers, or with any. Its
// connections end with life; the caller closes it.
func (c *Cluster) Client(ctx, life context.Context, set func(*sarama.Config)) (sarama.Client, error) {
	first, _ := c.first(ctx) // without one, any
	s := c.config.clientConfig(life, first)
	set(s)
	return sarama.NewClient(c.config.Brokers, s)
}

// Ping asks whether one of the brokers lets us in, over a new connection.
func (c *Cluster) Ping(ctx context.Context) error {
	_, err := probe(ctx, c.life, c.config)
	return err
}

// first returns a broker that answers. Clients that start at once share one look.
func (c *Cluster) first(ctx context.Context) (string, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if time.Since(c.at) < seedAge {
		return c.latest, nil
	}
	latest, err := probe(ctx, c.life, c.config)
	if err == nil {
		c.latest, c.at = latest, time.Now()
	}
	return latest, err
}

// Within calls ask, which cannot be cancelled, and does not wait for it when ctx ends before.
func (c *Cluster) Within(ctx context.Context, ask func() error) error {
	result := make(chan error, 1)
	c.asking.Go(func() { result <- ask() })
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wait returns after the last request that Within has not waited for. Connections must have ended.
func (c *Cluster) Wait() { c.asking.Wait() }

// TopicNames returns the names of the topics that this user may see, without Kafka's internal ones.
func TopicNames(client sarama.Client) ([]string, error) {
	request := sarama.NewMetadataRequest(client.Config().Version, nil)
	request.AllowAutoTopicCreation = false
	broker := client.LeastLoadedBroker()
	if broker == nil {
		return nil, sarama.ErrOutOfBrokers
	}
	answer, err := broker.GetMetadata(request)
	if err != nil {
		_ = broker.Close() // it opens again
		return nil, err
	}
	var names []string
	for _, topic := range answer.Topics {
		if !topic.IsInternal && !errors.Is(topic.Err, sarama.ErrUnknownTopicOrPartition) {
			names = append(names, topic.Name)
		}
	}
	return names, nil
}
