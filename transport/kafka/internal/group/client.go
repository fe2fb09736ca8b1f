package group

import (
	"context"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport/kafka/internal/backoff"
	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/txn"
)

const (
	// rebalanceTimeout is how long a group waits for its members to rejoin before it goes on without those that have not.
	// A killed member holds up the others for as long. Ours rejoin sooner: with 2 s, on Apache Kafka and two busy processors,
	// none of ten members whose handlers all held messages was thrown out while ten others came and five of them left.
	rebalanceTimeout = 8 * time.Second
	// slowRebalanceTimeout is the same with transactions: a member first waits for the offsets of partitions that it has just
	// got, until the brokers have aborted the transaction of their last owner.
	slowRebalanceTimeout = 30 * time.Second
	// heartbeatInterval is how soon a member learns of a rebalance, for which the others wait.
	heartbeatInterval = 500 * time.Millisecond
	// abortInterval is how late the brokers may find that a transaction's timeout is over: their
	// transaction.abort.timed.out.transaction.cleanup.interval.ms, and some.
	abortInterval = 15 * time.Second
	// partitionsAge is how soon a group sees that its topic has got more partitions, where sarama's default is 10 min.
	partitionsAge = 30 * time.Second
	// commitInterval is how often offsets are committed: what a killed process repeats.
	commitInterval = 100 * time.Millisecond
)

// fetchRetry is how long to wait before a fetch is tried again that has failed so many times in a row.
var fetchRetry = backoff.Doubling{Min: conn.RetryWait, Max: 2 * time.Second}

// newClient returns a client of its own for the member, because a long poll delays what comes after it on its connection.
// Its connections end with life; the caller closes it.
func (s *Subscription) newClient(ctx, life context.Context) (sarama.Client, error) {
	client, err := s.shared.Cluster.Client(ctx, life, s.configure)
	if err != nil {
		return nil, fmt.Errorf("connect consumer %s to Kafka: %w", s.config.Consumer, err)
	}
	return client, nil
}

// configure sets what a member's client has of its own.
func (s *Subscription) configure(c *sarama.Config) {
	transactions, rebalance := s.config.Transactions, rebalanceTimeout
	if transactions != nil {
		rebalance = slowRebalanceTimeout
	}
	c.Net.ReadTimeout = rebalance + conn.ReadTimeout // a join waits for the others
	c.Metadata.RefreshFrequency = partitionsAge
	c.Consumer.Return.Errors = true
	c.Consumer.Offsets.AutoCommit.Enable = transactions == nil // of what is marked
	c.Consumer.Offsets.AutoCommit.Interval = commitInterval
	// Of partitions that are added, and where the group's offset has expired with its messages, whatever StartAt says.
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	// What a transaction has aborted is not there, whoever has written it. With that sarama also waits for offsets that a
	// transaction has not committed yet.
	c.Consumer.IsolationLevel = sarama.ReadCommitted
	if transactions != nil && transactions.Without&txn.WithoutStable != 0 {
		c.Consumer.IsolationLevel = sarama.ReadUncommitted
	}
	c.Consumer.MaxWaitTime = conn.RetryWait // what leaving the group waits for
	c.Consumer.Group.Session.Timeout = s.config.SessionTimeout
	c.Consumer.Group.Heartbeat.Interval = heartbeatInterval
	c.Consumer.Group.Rebalance.Timeout = rebalance
	c.Consumer.Group.Rebalance.Retry.Backoff = conn.RetryWait // a join that another one has overtaken
	c.Consumer.Retry.BackoffFunc = fetchRetry.Wait
	c.Consumer.Group.Rebalance.GroupStrategies = s.config.Strategies
	c.Consumer.Group.InstanceId = s.config.Instance
}

// patientClient is the client of a member with transactional delivery. A transaction of a partition's last owner may still be
// open, and until the brokers have aborted it the group's offset is not known. sarama waits for that for as many attempts as
// are set for metadata: who has given up would join anew, and make all members wait. Only for these offsets the attempts are
// as many as the transaction needs.
type patientClient struct {
	sarama.Client
	offsets *sarama.Config
	joined  bool // the group has its configuration, and what asks from then on asks for offsets
}

// Config implements sarama.Client.
func (c *patientClient) Config() *sarama.Config {
	if c.joined {
		return c.offsets
	}
	return c.Client.Config()
}

// newGroup returns the consumer's group. Waits for offsets end with life.
func (s *Subscription) newGroup(life context.Context) (sarama.ConsumerGroup, error) {
	if s.config.Transactions == nil {
		return sarama.NewConsumerGroupFromClient(s.config.Consumer, s.client)
	}
	patient := *s.client.Config()
	patient.Metadata.Retry.Max = int((s.config.Transactions.Timeout + abortInterval) / conn.RetryWait)
	patient.Metadata.Retry.BackoffFunc = func(int, int) time.Duration {
		if life.Err() != nil {
			return 0
		}
		return conn.RetryWait
	}
	c := &patientClient{Client: s.client, offsets: &patient}
	group, err := sarama.NewConsumerGroupFromClient(s.config.Consumer, c)
	c.joined = true
	return group, err
}
