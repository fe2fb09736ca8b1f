package conn

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// seedAge is how long a broker that has answered is assumed to be available.
const seedAge = 5 * time.Second

// Cluster is the brokers of a configuration. It is safe for concurrent use.
type Cluster struct {
	config Config
	life   context.Context
	asking sync.WaitGroup // requests that their callers no longer wait for

	turn   chan struct{} // a lock: holds one value while a caller looks for a broker
	latest string        // the broker that last answered
	at     time.Time
}

// New returns a cluster whose connections end with life.
func New(life context.Context, config Config) *Cluster {
	if config.SASL.TokenURL != "" {
		config.SASL.Token = newTokens(life, config.SASL)
	}
	return &Cluster{config: config, life: life, turn: make(chan struct{}, 1)}
}

// Connect returns the client for everything except consuming. Its error says what is wrong with each broker. ctx bounds only the
// connecting.
func (c *Cluster) Connect(ctx context.Context) (sarama.Client, error) {
	_, err := c.first(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to Kafka: %w", err)
	}
	client, err := c.Client(ctx, c.life, func(s *sarama.Config) {
		s.Metadata.Retry.Max = 1 // the callers that wait for the answer have their own timeout
		s.Metadata.RefreshFrequency = MetadataInterval
	})
	if err != nil {
		return nil, fmt.Errorf("connect to Kafka: %w", err)
	}
	return client, nil
}

// Client returns a new client, for work that would delay others. It first connects to a broker that has answered, if there is one. Its
// connections end with life. The caller must close it.
func (c *Cluster) Client(ctx, life context.Context, set func(*sarama.Config)) (sarama.Client, error) {
	first, _ := c.first(ctx) // if none answers, any
	s := c.config.clientConfig(life, first)
	set(s)
	return sarama.NewClient(c.config.Brokers, s)
}

// Ping checks whether one of the brokers accepts a new connection.
func (c *Cluster) Ping(ctx context.Context) error {
	_, err := probe(ctx, c.life, c.config)
	return err
}

// first returns a broker that answers. Clients that start at the same time share one probe.
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

// Within calls ask, which cannot be cancelled. If ctx ends first, it returns without waiting for ask.
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

// Wait returns after the last request that Within stopped waiting for. Call it after the connections have ended.
func (c *Cluster) Wait() { c.asking.Wait() }

// TopicNames returns the names of the topics that this user may see, without Kafka's internal topics.
func TopicNames(client sarama.Client) ([]string, error) {
	request := sarama.NewMetadataRequest(client.Config().Version, nil)
	request.AllowAutoTopicCreation = false
	broker := client.LeastLoadedBroker()
	if broker == nil {
		return nil, sarama.ErrOutOfBrokers
	}
	answer, err := broker.GetMetadata(request)
	if err != nil {
		_ = broker.Close() // the next request opens it again
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
