package kafka_test

import (
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport/kafka"
)

// TestTransactionsV2Requests: a transaction takes two requests beside those that produce. Apache Kafka refuses one now and then,
// while the transaction before is about to end.
func TestTransactionsV2Requests(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, brokers []string) {
		c := newCopying(t, brokers, 5000)
		process := newFaultNet(nil)
		config := c.config(kafka.Config{Dial: process.dial})
		p := c.start(t, config, nil)
		c.await(t)
		p.stop(t)
		c.exactlyOnce(t)
		transactions := process.count(kmsg.EndTxn)
		require.GreaterOrEqual(t, transactions, c.n/config.Transaction.MaxRecords)
		require.Zero(t, process.count(kmsg.AddPartitionsToTxn)+process.count(kmsg.AddOffsetsToTxn))
		require.LessOrEqual(t, float64(process.count(kmsg.TxnOffsetCommit)+transactions), 2.2*float64(transactions))
	})
}

// TestTransactionsV2NeedTheBrokers: brokers that lack version 2 get version 1.
func TestTransactionsV2NeedTheBrokers(t *testing.T) {
	t.Parallel()
	c := newCopying(t, fake(t, kfake.MaxVersions(kversion.V3_7_0())).ListenAddrs(), 500)
	process := newFaultNet(nil)
	p := c.start(t, c.config(kafka.Config{Dial: process.dial}), nil)
	c.await(t)
	p.stop(t)
	c.exactlyOnce(t)
	require.Equal(t, process.count(kmsg.EndTxn), process.count(kmsg.AddOffsetsToTxn))
}

// level changes the version of transactions that the brokers agree on, as kafka-features.sh does.
func (c *copying) level(t *testing.T, from, to int16) {
	t.Helper()
	const upgrade, safeDowngrade = 1, 2
	update := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	update.Feature, update.MaxVersionLevel, update.UpgradeType = "transaction.version", to, upgrade
	if to < from {
		update.UpgradeType = safeDowngrade
	}
	request := kmsg.NewPtrUpdateFeaturesRequest()
	request.FeatureUpdates = append(request.FeatureUpdates, update)
	response, err := request.RequestWith(t.Context(), c.client)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(response.ErrorCode))
	for _, result := range response.Results {
		require.NoError(t, kerr.ErrorForCode(result.ErrorCode))
	}
}

// feed writes messages behind those that newCopying has written.
func (c *copying) feed(t *testing.T, n int) {
	t.Helper()
	records := make([]*kgo.Record, n)
	for i := range records {
		key := strconv.Itoa(c.n % 10)
		records[i] = &kgo.Record{Topic: c.in, Key: []byte(key), Value: fmt.Appendf(nil, "%s:%d", key, c.n/10)}
		c.n++
	}
	require.NoError(t, c.client.ProduceSync(t.Context(), records...).FirstErr())
}

// TestTransactionsV2Rolling: the version that the brokers agree on changes up and down while two processes copy and lose
// connections. Whoever recovers from a failure goes on in the version that holds then. From level 2 it does not go down to 0 on
// Apache Kafka, whose coordinator cannot write there what it knows of a transaction of version 2, and keeps it open until it
// starts again.
func TestTransactionsV2Rolling(t *testing.T) {
	t.Parallel()
	t.Run("kfake", func(t *testing.T) {
		t.Parallel()
		testRolling(t, newCopying(t, fake(t, kfake.NumBrokers(3)).ListenAddrs(), 1000), 0, 2, 0, 2, 1, 2)
	})
	t.Run("Apache Kafka", func(t *testing.T) {
		t.Parallel()
		testRolling(t, newCopying(t, devtest.Kafka(t, devstack.KafkaConfig{Brokers: 1}).Brokers(), 1000), 0, 1, 2, 1, 2)
	})
}

func testRolling(t *testing.T, c *copying, levels ...int16) {
	t.Helper()
	c.level(t, 2, levels[0])
	var copiers []*copier
	var nets []*faultNet
	for range 2 {
		var transactions atomic.Int32
		process := newFaultNet(func(kind kmsg.Key, n int) fate {
			switch {
			case kind == kmsg.Produce:
				transactions.Add(1)
			case kind == kmsg.EndTxn && transactions.Load() >= 10:
				transactions.Store(0)
				return loseAnswer
			case kind == kmsg.TxnOffsetCommit && n%15 == 0:
				return loseRequest
			}
			return pass
		})
		config := c.config(kafka.Config{Dial: process.dial})
		config.Transaction.MaxRecords = 10
		copiers, nets = append(copiers, c.start(t, config, nil)), append(nets, process)
	}
	for i, level := range levels {
		if i > 0 {
			c.level(t, levels[i-1], level)
		}
		for _, process := range nets {
			// Twenty transactions of the version that holds, one after another. In version 2 none has AddOffsetsToTxn.
			began, adds := process.count(kmsg.EndTxn), process.count(kmsg.AddOffsetsToTxn)
			require.Eventually(t, func() bool {
				if c.lag(t) < 500 {
					c.feed(t, 200)
				}
				if added := process.count(kmsg.AddOffsetsToTxn); (added > adds) == (level == 2) {
					began, adds = process.count(kmsg.EndTxn), added
				}
				return process.count(kmsg.EndTxn) >= began+20
			}, 2*time.Minute, tick, "level %d", level)
		}
	}
	c.await(t)
	for _, p := range copiers {
		p.stop(t)
	}
	c.exactlyOnce(t)
}

// TestTransactionsV2EpochsExhausted: the end of a transaction brings another producer ID when the epochs of the one before are
// used up.
func TestTransactionsV2EpochsExhausted(t *testing.T) {
	t.Parallel()
	c := hundreds(t)
	var log logged
	config := c.config(kafka.Config{Logger: log.logger()})
	config.Consumer.InstanceID = "pod"
	config.Transaction.MaxRecords = 10
	c.start(t, config, nil).stop(t)
	before, err := c.admin.ListTransactions(t.Context(), nil, nil)
	require.NoError(t, err)
	require.Len(t, before, 1)
	id := before.TransactionalIDs()[0]

	initialize := kmsg.NewPtrInitProducerIDRequest()
	initialize.TransactionalID, initialize.TransactionTimeoutMillis = &id, 10_000
	producer, err := initialize.RequestWith(t.Context(), c.client)
	require.NoError(t, err)
	abort := kmsg.NewPtrEndTxnRequest()
	abort.TransactionalID, abort.ProducerID, abort.ProducerEpoch = id, producer.ProducerID, producer.ProducerEpoch
	for abort.ProducerEpoch < math.MaxInt16-5 {
		ended, err := abort.RequestWith(t.Context(), c.client)
		require.NoError(t, err)
		require.NoError(t, kerr.ErrorForCode(ended.ErrorCode))
		require.Equal(t, abort.ProducerEpoch+1, ended.ProducerEpoch)
		abort.ProducerEpoch = ended.ProducerEpoch
	}

	c.feed(t, 300)
	p := c.start(t, config, nil)
	c.await(t)
	p.stop(t)
	c.exactlyOnce(t)
	require.NotContains(t, log.String(), "a transaction failed")
	after, err := c.admin.ListTransactions(t.Context(), nil, nil)
	require.NoError(t, err)
	require.NotEqual(t, producer.ProducerID, after[id].ProducerID)
}
