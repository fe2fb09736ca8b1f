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
	// rebalanceTimeout is how long a group waits for its members to rejoin before it continues without those that have not. A killed
	// member delays the others for that long. Live members rejoin sooner: with 2 s, on Apache Kafka and two busy processors, none of ten
	// members whose handlers all held messages was removed while ten others joined and five of them left.
	rebalanceTimeout = 8 * time.Second
	// slowRebalanceTimeout is the same with transactions. A member first waits for the offsets of newly assigned partitions, until the
	// brokers have aborted the transaction of their last owner.
	slowRebalanceTimeout = 30 * time.Second
	// heartbeatInterval is how soon a member learns of a rebalance, for which the other members wait.
	heartbeatInterval = 500 * time.Millisecond
	// abortInterval is how late the brokers may notice that a transaction has timed out: their
	// transaction.abort.timed.out.transaction.cleanup.interval.ms, plus a margin.
	abortInterval = 15 * time.Second
	// partitionsAge is how soon a group notices that its topic has more partitions. sarama's default is 10 min.
	partitionsAge = 30 * time.Second
	// commitInterval is how often offsets are committed. A killed process's work since its last commit is repeated.
	commitInterval = 100 * time.Millisecond
)

// fetchRetry is the wait before a fetch is retried, by the number of its failures in a row.
var fetchRetry = backoff.Doubling{Min: conn.RetryWait, Max: 2 * time.Second}

// newClient returns a client for this member alone, because a long poll delays later requests on its connection. Its connections end with
// life. The caller must close it.
func (s *Subscription) newClient(ctx, life context.Context) (sarama.Client, error) {
	client, err := s.shared.Cluster.Client(ctx, life, s.configure)
	if err != nil {
		return nil, fmt.Errorf("connect consumer %s to Kafka: %w", s.config.Consumer, err)
	}
	return client, nil
}

// configure sets what a member's client needs.
func (s *Subscription) configure(c *sarama.Config) {
	transactions, rebalance := s.config.Transactions, rebalanceTimeout
	if transactions != nil {
		rebalance = slowRebalanceTimeout
	}
	c.Net.ReadTimeout = rebalance + conn.ReadTimeout // a JoinGroup request waits for the other members
	c.Metadata.RefreshFrequency = partitionsAge
	c.Consumer.Return.Errors = true
	c.Consumer.Offsets.AutoCommit.Enable = transactions == nil // commits marked offsets
	c.Consumer.Offsets.AutoCommit.Interval = commitInterval
	// For partitions that are added, and if the group's offset has expired with its messages, whatever StartAt says.
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	// Aborted records are not delivered, whoever wrote them. With this setting sarama also waits for offsets that a transaction has not
	// committed yet.
	c.Consumer.IsolationLevel = sarama.ReadCommitted
	if transactions != nil && transactions.Without&txn.WithoutStable != 0 {
		c.Consumer.IsolationLevel = sarama.ReadUncommitted
	}
	c.Consumer.Fetch.MaxBytes = int32(s.shared.Budget.request)
	c.Consumer.Fetch.Default = int32(s.shared.Budget.fetch)
	c.Consumer.MaxWaitTime = conn.RetryWait // leaving the group waits for it
	c.Consumer.Group.Session.Timeout = s.config.SessionTimeout
	c.Consumer.Group.Heartbeat.Interval = heartbeatInterval
	c.Consumer.Group.Rebalance.Timeout = rebalance
	c.Consumer.Group.Rebalance.Retry.Backoff = conn.RetryWait // after a join that another rebalance has overtaken
	c.Consumer.Retry.BackoffFunc = fetchRetry.Wait
	c.Consumer.Group.Rebalance.GroupStrategies = s.config.Strategies
	c.Consumer.Group.InstanceId = s.config.Instance
}

// patientClient is the client of a member with transactional delivery. A transaction of a partition's last owner may still be open, and
// the group's offset is unknown until the brokers have aborted it. sarama retries for as many attempts as are set for metadata; a member
// that gives up would join again and make all members wait. This client allows as many attempts as the transaction needs, for these
// offsets only.
type patientClient struct {
	sarama.Client
	offsets *sarama.Config
	joined  bool // the group has its configuration; later callers of Config ask for offsets
}

// Config implements sarama.Client.
func (c *patientClient) Config() *sarama.Config {
	if c.joined {
		return c.offsets
	}
	return c.Client.Config()
}

// newGroup returns the consumer's group. life ends waits for offsets.
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
