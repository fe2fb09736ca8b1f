package kafka

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

const (
	// dialTimeout bounds the opening of one connection, and what New waits for the first one.
	dialTimeout = 5 * time.Second
	// brokerTimeout is how long a broker may wait for its replicas before it answers a produce request.
	brokerTimeout = 10 * time.Second
	// readTimeout finds connections that have become black holes. It is above what a broker may take: brokerTimeout.
	readTimeout = 20 * time.Second
	// rebalanceTimeout is how long a group waits for its members to rejoin before it goes on without those that have not.
	// A killed member holds up the others for as long. Ours rejoin sooner: with 2 s, on Apache Kafka and two busy processors,
	// none of ten members whose handlers all held messages was thrown out while ten others came and five of them left.
	rebalanceTimeout = 8 * time.Second
	// slowRebalanceTimeout is the same with transactions: a member first waits for the offsets of partitions that it has just
	// got, until the brokers have aborted the transaction of their last owner.
	slowRebalanceTimeout = 30 * time.Second
	// heartbeatInterval is how soon a member learns of a rebalance, for which the others wait.
	heartbeatInterval = 500 * time.Millisecond
	// retryWait is the wait before what failed while consuming is tried again, where sarama would wait for 2 s.
	retryWait = 250 * time.Millisecond
	// abortInterval is how late the brokers may find that a transaction's timeout is over: their
	// transaction.abort.timed.out.transaction.cleanup.interval.ms, and some.
	abortInterval = 15 * time.Second
	// partitionsAge is how soon a group sees that its topic has got more partitions, where sarama's default is 10 min.
	partitionsAge = 30 * time.Second
	// commitInterval is how often offsets are committed: what a killed process repeats.
	commitInterval = 100 * time.Millisecond
	// metadataInterval is how soon a publisher uses partitions that a topic has got.
	metadataInterval = time.Minute
)

// dialer implements golang.org/x/net/proxy.Dialer, which is how sarama takes one. Its context ends with the transport, so
// that nothing waits for a connection then.
type dialer struct {
	ctx  context.Context
	dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Dial implements proxy.Dialer.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(d.ctx, dialTimeout)
	defer cancel()
	conn, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &lifeConn{Conn: conn, forget: context.AfterFunc(d.ctx, func() { _ = conn.Close() })}, nil
}

// lifeConn is a connection that ends with a context, and is forgotten by it when it ends before.
type lifeConn struct {
	net.Conn
	forget func() bool
}

// Close implements net.Conn.
func (c *lifeConn) Close() error {
	c.forget()
	return c.Conn.Close()
}

// clientConfig is what all clients have in common. Connections end with ctx.
func (c Config) clientConfig(ctx context.Context) *sarama.Config {
	s := sarama.NewConfig()
	s.ClientID = c.ClientID
	s.Version, _ = sarama.ParseKafkaVersion(c.Version) // valid
	s.Net.DialTimeout = dialTimeout
	s.Net.ReadTimeout = readTimeout
	s.Net.WriteTimeout = readTimeout
	s.Net.Proxy.Enable = true
	s.Net.Proxy.Dialer = &dialer{ctx: ctx, dial: c.Dial}
	s.Net.TLS.Enable = c.TLS != nil
	s.Net.TLS.Config = c.TLS
	s.Metadata.Full = false // of the topics that are used
	s.Metadata.AllowAutoTopicCreation = false
	if c.SASL.Mechanism != "" {
		s.Net.SASL.Enable = true
		s.Net.SASL.Mechanism = sarama.SASLMechanism(c.SASL.Mechanism)
		s.Net.SASL.User = c.SASL.User
		s.Net.SASL.Password = c.SASL.Password
		s.Net.SASL.TokenProvider = c.SASL.Token
		hash := scram.SHA256
		if c.SASL.Mechanism == sarama.SASLTypeSCRAMSHA512 {
			hash = scram.SHA512
		}
		s.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: hash} }
	}
	return s
}

// newClient returns the client for all but consuming. ctx bounds the connecting only; the client's connections end with
// life.
func newClient(ctx, life context.Context, config Config) (sarama.Client, error) {
	if err := probe(ctx, life, config); err != nil {
		return nil, fmt.Errorf("connect to Kafka: %w", err)
	}
	s := config.clientConfig(life)
	s.Metadata.Retry.Max = 1 // what waits for the answer has its own patience
	s.Metadata.RefreshFrequency = metadataInterval
	client, err := sarama.NewClient(config.Brokers, s)
	if err != nil {
		return nil, fmt.Errorf("connect to Kafka: %w", err)
	}
	return client, nil
}

// consumerClient returns a client of its own for one consumer, because a long poll delays what comes after it on its
// connection. Its connections end with life; the caller closes it. instance is its name as a static member of the group.
func (t *Transport) consumerClient(life context.Context, consumer, instance string) (sarama.Client, error) {
	settings := t.config.consumer(consumer)
	s := t.config.clientConfig(life)
	rebalance := t.config.rebalanceTimeout()
	s.Net.ReadTimeout = rebalance + readTimeout // a join waits for the others
	s.Metadata.RefreshFrequency = partitionsAge
	s.Consumer.Return.Errors = true
	s.Consumer.Offsets.AutoCommit.Enable = t.config.Delivery == AtLeastOnce // of what is marked
	s.Consumer.Offsets.AutoCommit.Interval = commitInterval
	// Of partitions that are added, and where the group's offset has expired with its messages, whatever StartAt says.
	s.Consumer.Offsets.Initial = sarama.OffsetOldest
	// What a transaction has aborted is not there, whoever has written it. With that sarama also waits for offsets that a
	// transaction has not committed yet.
	s.Consumer.IsolationLevel = sarama.ReadCommitted
	if t.config.Transaction.holes&withoutStable != 0 {
		s.Consumer.IsolationLevel = sarama.ReadUncommitted
	}
	if t.config.Delivery == Transactional {
		// The transaction of a killed member is open until its timeout: a session that gave up waiting for its offsets
		// would rejoin again and again.
		s.Metadata.Retry.Max += int((t.config.Transaction.Timeout + abortInterval) / retryWait)
		s.Metadata.Retry.BackoffFunc = func(int, int) time.Duration {
			if life.Err() != nil {
				return 0
			}
			return retryWait
		}
	}
	s.Consumer.MaxWaitTime = retryWait // what leaving the group waits for
	s.Consumer.Group.Session.Timeout = settings.SessionTimeout
	s.Consumer.Group.Heartbeat.Interval = heartbeatInterval
	s.Consumer.Group.Rebalance.Timeout = rebalance
	s.Consumer.Group.Rebalance.Retry.Backoff = retryWait // a join that another one has overtaken
	s.Consumer.Retry.Backoff = retryWait                 // a fetch
	s.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{settings.Assignment.strategy()}
	s.Consumer.Group.InstanceId = instance
	client, err := sarama.NewClient(t.config.Brokers, s)
	if err != nil {
		return nil, fmt.Errorf("connect consumer %s to Kafka: %w", consumer, err)
	}
	return client, nil
}

// rebalanceTimeout is how long a group waits for this process to rejoin.
func (c Config) rebalanceTimeout() time.Duration {
	if c.Delivery == Transactional {
		return slowRebalanceTimeout
	}
	return rebalanceTimeout
}
