package kafka_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/transport/kafka"
)

// TestTransactionOfALostPartition: a transaction takes longer than a partition waits for it in a rebalance. By the time
// its offsets are sent, the member has its next generation, and another member the partition.
func TestTransactionOfALostPartition(t *testing.T) {
	t.Parallel()
	inVersions(t, func(t *testing.T, v txnVersion) {
		for _, assignment := range []kafka.Assignment{kafka.CooperativeSticky, kafka.Range} {
			t.Run(assignment.String(), func(t *testing.T) {
				t.Parallel()
				c := hundreds(t)
				goOn, stuck := make(chan struct{}), make(chan struct{})
				process := newFaultNet(func(kind kmsg.Key, n int) fate {
					if kind == v.first && n == 1 {
						close(stuck)
						<-goOn
					}
					return pass
				})
				config := v.of(c.config(kafka.Config{Dial: process.dial}))
				config.Consumer.Assignment = assignment
				config.Transaction.Timeout = time.Minute
				config.Transaction.MaxRecords = c.n
				p := c.start(t, config, nil)
				<-stuck
				config = v.of(c.config(kafka.Config{}))
				config.Consumer.Assignment = assignment
				before := c.lag(t)
				other := c.start(t, config, nil)
				require.Eventually(t, func() bool { return c.lag(t) < before }, time.Minute, 10*time.Millisecond)
				close(goOn)
				c.await(t)
				p.stop(t)
				other.stop(t)
				c.exactlyOnce(t)
			})
		}
	})
}

// TestStaleGenerationWaits: the group has a generation that the member has not joined yet. It tried its transaction again and again,
// ten times in the first second, and each time in vain.
func TestStaleGenerationWaits(t *testing.T) {
	t.Parallel()
	cluster := fake(t)
	c := newCopying(t, cluster.ListenAddrs(), 0)
	var last int32 // the last generation that is refused
	var seen atomic.Bool
	attempts := make(chan time.Time, 1000)
	stale := func(r kmsg.Request) bool { // one at a time
		commit := r.(*kmsg.TxnOffsetCommitRequest)
		if !seen.Load() {
			last = commit.Generation
		}
		if commit.Generation > last {
			return false
		}
		attempts <- time.Now()
		return true
	}
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Group: c.consumer, Err: kerr.IllegalGeneration, Count: -1, When: stale})
	p := c.start(t, c.config(kafka.Config{}), nil)
	c.put(t, 0, "refused")
	began, _ := <-attempts, <-attempts
	require.Greater(t, (<-attempts).Sub(began), 5*time.Second, "it does not wait for its next generation")
	seen.Store(true)
	other := c.start(t, c.config(kafka.Config{}), nil) // a rebalance gives it one
	c.await(t)
	p.stop(t)
	other.stop(t)
	require.Equal(t, []string{"refused"}, c.read(t, c.out))
}
