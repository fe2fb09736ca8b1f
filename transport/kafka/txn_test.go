package kafka_test

import (
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
}

var (
	txnV1 = txnVersion{"version 1", []kmsg.Key{kmsg.AddPartitionsToTxn, kmsg.AddOffsetsToTxn, kmsg.Produce, kmsg.TxnOffsetCommit, kmsg.EndTxn}, kmsg.AddOffsetsToTxn}
	txnV2 = txnVersion{"version 2", []kmsg.Key{kmsg.Produce, kmsg.TxnOffsetCommit, kmsg.EndTxn}, kmsg.TxnOffsetCommit}
)

// of returns a configuration with which transactions are of the version.
func (v txnVersion) of(c kafka.Config) kafka.Config {
	if v.name == txnV1.name {
		return kafka.Without(c, kafka.WithoutV2)
	}
	return c
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
