package kafka_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// TestTransactionRequests: one of each for each coordinator, and one for each broker that leads a partition.
func TestTransactionRequests(t *testing.T) {
	t.Parallel()
	inVersions(t, func(t *testing.T, v txnVersion) {
		c := newCopying(t, fake(t, kfake.NumBrokers(3)).ListenAddrs(), 5000)
		process := newFaultNet(nil)
		config := v.of(c.config(kafka.Config{Dial: process.dial}))
		config.Transaction.MaxRecords = 500
		config.Transaction.MaxDelay = 500 * time.Millisecond // a tenth of it without a message ends a transaction, also on a busy machine
		p := c.start(t, config, nil)
		c.await(t)
		p.stop(t)
		transactions := process.count(kmsg.EndTxn)
		require.Less(t, transactions, 100)
		for _, kind := range txnV1.kinds {
			switch {
			case kind == kmsg.Produce:
				require.LessOrEqual(t, process.count(kind), 3*transactions)
			case kind == kmsg.AddPartitionsToTxn && slices.Contains(v.kinds, kind): // but for those that note the start of a partition
				require.LessOrEqual(t, process.count(kind), transactions)
				require.GreaterOrEqual(t, process.count(kind), transactions-copyPartitions)
			case slices.Contains(v.kinds, kind):
				require.Equal(t, transactions, process.count(kind))
			default:
				require.Zero(t, process.count(kind))
			}
		}
		require.Equal(t, 1, process.count(kmsg.InitProducerID))
	})
}

// TestTransactionLeavesNothingOpen: after a shutdown in the middle of it all.
func TestTransactionLeavesNothingOpen(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, brokers []string) {
		c := newCopying(t, brokers, 3000)
		for _, assignment := range []kafka.Assignment{kafka.CooperativeSticky, kafka.Range, kafka.CooperativeSticky} {
			config := c.config(kafka.Config{})
			config.Consumer.Assignment = assignment
			p := c.start(t, config, nil)
			before := c.lag(t)
			require.Eventually(t, func() bool { return c.lag(t) < before }, wait, time.Millisecond)
			p.stop(t)
			transactions, err := c.admin.ListTransactions(t.Context(), nil, nil)
			require.NoError(t, err)
			require.Eventually(t, func() bool { // the last one's markers may be on their way
				described, err := c.admin.DescribeTransactions(t.Context(), transactions.TransactionalIDs()...)
				require.NoError(t, err)
				open := 0
				described.Each(func(d kadm.DescribedTransaction) {
					if _, ok := d.Topics[c.out]; ok {
						require.NotEqual(t, "Ongoing", d.State, d.TxnID)
						open++
					}
				})
				return open == 0
			}, wait, 10*time.Millisecond)
			if before = c.lag(t); before == 0 {
				break
			}
		}
		p := c.start(t, c.config(kafka.Config{}), nil)
		c.await(t)
		p.stop(t)
		c.exactlyOnce(t)
	})
}

// TestTransactionOfManyBatches: one handler publishes more than a batch, a request and a transaction should have.
func TestTransactionOfManyBatches(t *testing.T) {
	t.Parallel()
	c := newCopying(t, fake(t).ListenAddrs(), 10)
	payload := bytes.Repeat([]byte("x"), 300_000)
	config := c.config(kafka.Config{})
	config.Transaction.MaxBytes = 1 << 20
	config.Producer.Compression = kafka.Uncompressed
	process := newFaultNet(nil)
	config.Dial = process.dial
	p := c.start(t, config, func(msg *message.Message, publisher message.Publisher) error {
		for range 20 {
			large := message.NewMessageWithContext(msg.Context(), watermill.NewUUID(), payload)
			transport.SetKey(large, "k")
			if err := publisher.Publish(c.out, large); err != nil {
				return err
			}
		}
		return nil
	})
	c.await(t)
	p.stop(t)
	require.Len(t, c.read(t, c.out), 200)
	require.Greater(t, process.count(kmsg.Produce), process.count(kmsg.EndTxn))
	require.Equal(t, 1, process.count(kmsg.InitProducerID))
}

// TestRefusedOutputs: the broker refuses one output. Its message becomes a dead letter; without dead letters its partition
// waits for it, and the others go on.
func TestRefusedOutputs(t *testing.T) {
	t.Parallel()
	refusing := func(t *testing.T) *copying {
		t.Helper()
		cluster := fake(t)
		c := newCopying(t, cluster.ListenAddrs(), 300)
		cluster.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			request := r.(*kmsg.ProduceRequest)
			if request.TransactionID == nil || !bytes.Contains(body(request), []byte("poison")) {
				return nil, nil, false
			}
			response := request.ResponseKind().(*kmsg.ProduceResponse)
			for _, topic := range request.Topics {
				answer := kmsg.NewProduceResponseTopic()
				answer.Topic = topic.Topic
				for _, partition := range topic.Partitions {
					p := kmsg.NewProduceResponseTopicPartition()
					p.Partition, p.ErrorCode = partition.Partition, kerr.InvalidRecord.Code
					answer.Partitions = append(answer.Partitions, p)
				}
				response.Topics = append(response.Topics, answer)
			}
			return response, nil, true
		})
		return c
	}
	handler := func(c *copying) func(*message.Message, message.Publisher) error {
		return func(msg *message.Message, publisher message.Publisher) error {
			o := outputOf(msg)
			if string(msg.Payload) == "7:15" {
				o.Payload = []byte("poison")
			}
			return publisher.Publish(c.out, o)
		}
	}
	t.Run("dead letters", func(t *testing.T) {
		t.Parallel()
		c := refusing(t)
		config := c.config(kafka.Config{})
		config.Producer.Compression = kafka.Uncompressed
		config.Consumer.DeadLetter.Topic = c.in + ".dead"
		p := c.start(t, config, handler(c))
		c.await(t)
		p.stop(t)
		require.Equal(t, report{read: 299, missing: 1}, c.report(t))
		require.Equal(t, []string{"7:15"}, c.read(t, c.in+".dead"))
	})
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		c := refusing(t)
		config := c.config(kafka.Config{})
		config.Producer.Compression = kafka.Uncompressed
		p := c.start(t, config, handler(c))
		require.Eventually(t, func() bool { return c.ended(t) == copyPartitions-1 }, wait, time.Millisecond)
		p.stop(t)
		r := c.report(t)
		require.Zero(t, r.duplicates+r.disordered)
		require.Positive(t, r.missing)
	})
}

func body(r *kmsg.ProduceRequest) (all []byte) {
	for _, topic := range r.Topics {
		for _, partition := range topic.Partitions {
			all = append(all, partition.Records...)
		}
	}
	return all
}

// ended is how many partitions the group has committed to their ends.
func (c *copying) ended(t *testing.T) (n int) {
	t.Helper()
	ends, err := c.admin.ListEndOffsets(t.Context(), c.in)
	require.NoError(t, err)
	committed, err := c.admin.FetchOffsets(t.Context(), c.consumer)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return -1
	}
	ends.Each(func(end kadm.ListedOffset) {
		if o, ok := committed.Lookup(c.in, end.Partition); ok && o.At == end.Offset {
			n++
		}
	})
	return n
}
