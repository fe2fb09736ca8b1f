package txn

import (
	"errors"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport/kafka/internal/backoff"
)

// shortPatience is how long a partition may answer NOT_ENOUGH_REPLICAS before its outputs wait outside of transactions. Brokers also answer
// it for a moment in which they cannot ask the coordinator whether the partition belongs to the transaction.
const shortPatience = time.Second

// shortRetry is the wait until a partition is tried again although no replica has joined: somebody may have lowered min.insync.replicas.
// A failure costs the member a transactional ID, and about four seconds.
var shortRetry = backoff.Doubling{Min: 5 * time.Second, Max: time.Minute}

// shortage says how many replicas in sync are too few for a topic's min.insync.replicas. That holds for each of its partitions.
type shortage struct {
	inSync   int
	cause    error
	failures int // in a row
	until    time.Time
}

// lacking remembers that the partition refuses writes because it lacks replicas.
func (o *outlets) lacking(at topicPartition, cause error) {
	o.look(at.topic)
	s, now := o.short[at.topic], time.Now()
	if !s.until.After(now) {
		s = shortage{failures: s.failures + 1}
		s.until = now.Add(shortRetry.Wait(s.failures))
	}
	s.inSync, s.cause = max(s.inSync, o.inSync(at)), cause
	o.short[at.topic] = s
}

// lacks returns why the partition must be expected to refuse writes, or nil.
func (o *outlets) lacks(at topicPartition) error {
	if s, ok := o.short[at.topic]; ok && o.inSync(at) <= s.inSync && time.Now().Before(s.until) {
		return s.cause
	}
	return nil
}

// took notes that the partition has taken a write.
func (o *outlets) took(at topicPartition) {
	if s, ok := o.short[at.topic]; ok && o.inSync(at) <= s.inSync {
		delete(o.short, at.topic)
	}
}

// inSync is how many of the partition's replicas are in sync, as far as the client knows.
func (o *outlets) inSync(at topicPartition) int {
	replicas, err := o.client.InSyncReplicas(at.topic, at.partition)
	if err != nil && !errors.Is(err, sarama.ErrReplicaNotAvailable) {
		return 0
	}
	return len(replicas)
}
