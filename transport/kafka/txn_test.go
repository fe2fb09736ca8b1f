package kafka_test

import (
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/transport/kafka"
)

// onBoth runs a test on the fake and on Apache Kafka.
func onBoth(t *testing.T, test func(t *testing.T, brokers []string)) {
	t.Helper()
	t.Run("kfake", func(t *testing.T) {
		t.Parallel()
		test(t, fake(t).ListenAddrs())
	})
	t.Run("Apache Kafka", func(t *testing.T) {
		t.Parallel()
		test(t, brokers(t))
	})
}

// txnVersion is a version of transactions, on brokers that have both.
type txnVersion struct {
	name  string
	kinds []kmsg.Key // the requests of a transaction
	first kmsg.Key   // of those to a coordinator, the first
	sends kmsg.Key   // the first that only a transaction with outputs has
}

var (
	txnV1 = txnVersion{"version 1", []kmsg.Key{kmsg.AddPartitionsToTxn, kmsg.AddOffsetsToTxn, kmsg.Produce, kmsg.TxnOffsetCommit, kmsg.EndTxn}, kmsg.AddOffsetsToTxn, kmsg.AddPartitionsToTxn}
	txnV2 = txnVersion{"version 2", []kmsg.Key{kmsg.Produce, kmsg.TxnOffsetCommit, kmsg.EndTxn}, kmsg.TxnOffsetCommit, kmsg.Produce}
)

// of returns a configuration with which transactions are of the version.
func (v txnVersion) of(c kafka.Config) kafka.Config {
	if v.name == txnV1.name {
		return kafka.Without(c, kafka.WithoutV2)
	}
	return c
}

// withOutputs is the fate of the first request of the kind in a transaction with outputs: those before note the start of a partition.
func (v txnVersion) withOutputs(kind kmsg.Key, what fate) func(kmsg.Key, int) fate {
	var sends, happened atomic.Bool
	return func(k kmsg.Key, _ int) fate {
		if k == v.sends {
			sends.Store(true)
		}
		if k == kind && sends.Load() && !happened.Swap(true) {
			return what
		}
		return pass
	}
}

// inVersions runs a test with each version of transactions.
func inVersions(t *testing.T, test func(t *testing.T, v txnVersion)) {
	t.Helper()
	for _, v := range []txnVersion{txnV1, txnV2} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			test(t, v)
		})
	}
}

// Each message is copied once, and each key keeps its order.
func TestTransactions(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, brokers []string) {
		inVersions(t, func(t *testing.T, v txnVersion) {
			c := newCopying(t, brokers, 2000)
			p := c.start(t, v.of(c.config(kafka.Config{})), nil)
			c.await(t)
			p.stop(t)
			c.exactlyOnce(t)
		})
	})
}
