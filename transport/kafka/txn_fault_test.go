package kafka_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/transport/kafka"
)

// TestTransactionFaults: whatever becomes of the third request of each kind, and of the process that sent it, each message
// is copied once. Another process takes over from one that is killed or stopped; one that was stopped for longer than its
// session and its transaction goes on then, and still believes that the partitions are its own.
func TestTransactionFaults(t *testing.T) {
	t.Parallel()
	inVersions(t, testTransactionFaults)
}

func testTransactionFaults(t *testing.T, v txnVersion) {
	for _, kind := range v.kinds {
		for name, what := range map[string]fate{
			"the answer is lost": loseAnswer, "the answer is late": delayAnswer, "the request is lost": loseRequest,
			"the request is late": delayRequest, "killed": killProcess, "stopped": stopProcess,
		} {
			t.Run(kmsg.NameForKey(kind.Int16())+"/"+name, func(t *testing.T) {
				t.Parallel()
				c := newCopying(t, fake(t, kfake.NumBrokers(3)).ListenAddrs(), 1000)
				process := newFaultNet(nth(kind, 6, what))
				p := c.start(t, v.of(c.config(kafka.Config{Dial: process.dial})), nil)
				<-process.happened
				switch what {
				case delayRequest:
					after := process.count(kmsg.EndTxn) + 2
					require.Eventually(t, func() bool { return process.count(kmsg.EndTxn) >= after || c.lag(t) == 0 }, wait, time.Millisecond)
					process.release(t)
				case stopProcess:
					other := c.start(t, v.of(c.config(kafka.Config{})), nil)
					c.await(t)
					process.thaw()
					p.stop(t)
					other.stop(t)
				case killProcess:
					other := c.start(t, v.of(c.config(kafka.Config{})), nil)
					c.await(t)
					p.stop(t)
					other.stop(t)
				case pass, loseAnswer, delayAnswer, loseRequest:
				}
				c.await(t)
				p.stop(t)
				c.exactlyOnce(t)
			})
		}
	}
}

// TestTransactionErrors: whatever error code the brokers answer, each message is copied once.
func TestTransactionErrors(t *testing.T) {
	t.Parallel()
	inVersions(t, testTransactionErrors)
}

func testTransactionErrors(t *testing.T, v txnVersion) {
	cases := map[kmsg.Key][]*kerr.Error{
		kmsg.Produce: {
			kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.NotLeaderForPartition, kerr.InvalidTxnState, kerr.InvalidProducerEpoch,
			kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.RequestTimedOut, kerr.UnknownServerError,
		},
		kmsg.AddPartitionsToTxn: {
			kerr.ConcurrentTransactions, kerr.NotCoordinator, kerr.CoordinatorNotAvailable, kerr.CoordinatorLoadInProgress, kerr.ProducerFenced,
			kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping, kerr.InvalidTxnState, kerr.UnknownTopicOrPartition,
		},
		kmsg.AddOffsetsToTxn: {
			kerr.ConcurrentTransactions, kerr.NotCoordinator, kerr.CoordinatorNotAvailable, kerr.ProducerFenced, kerr.InvalidTxnState,
		},
		kmsg.TxnOffsetCommit: {
			kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.RequestTimedOut, kerr.RebalanceInProgress, kerr.IllegalGeneration,
			kerr.UnknownMemberID, kerr.FencedInstanceID, kerr.InvalidProducerEpoch, kerr.UnknownServerError,
		},
		kmsg.EndTxn: {
			kerr.ConcurrentTransactions, kerr.NotCoordinator, kerr.CoordinatorNotAvailable, kerr.ProducerFenced, kerr.InvalidProducerEpoch,
			kerr.InvalidProducerIDMapping, kerr.InvalidTxnState, kerr.UnknownServerError,
		},
	}
	for _, kind := range v.kinds {
		errs := cases[kind]
		if v.name == txnV2.name {
			errs = append(errs, kerr.ConcurrentTransactions, kerr.TransactionAbortable)
		}
		for _, code := range errs {
			t.Run(kmsg.NameForKey(kind.Int16())+"/"+code.Message, func(t *testing.T) {
				t.Parallel()
				cluster := fake(t)
				c := newCopying(t, cluster.ListenAddrs(), 500)
				top := kind == kmsg.EndTxn || kind == kmsg.AddOffsetsToTxn
				fault := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kind}, Err: code, TopLevel: top, Count: 2})
				p := c.start(t, v.of(c.config(kafka.Config{})), nil)
				c.await(t)
				p.stop(t)
				c.exactlyOnce(t)
				require.Positive(t, fault.Hits())
			})
		}
	}
}
