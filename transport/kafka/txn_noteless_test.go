package kafka_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/transport/kafka"
)

// TestLostAnswerWithoutNotes: brokers refuse the notes beside offsets, and the answer to the end of a transaction is lost. The member
// looked for its note to learn the outcome, so it took the transaction for another member's and gave its partitions up.
func TestLostAnswerWithoutNotes(t *testing.T) {
	t.Parallel()
	inVersions(t, func(t *testing.T, v txnVersion) {
		cluster := fake(t)
		cluster.ControlKey(int16(kmsg.TxnOffsetCommit), func(r kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			request := r.(*kmsg.TxnOffsetCommitRequest)
			response := request.ResponseKind().(*kmsg.TxnOffsetCommitResponse)
			refused := false
			for _, topic := range request.Topics {
				of := kmsg.TxnOffsetCommitResponseTopic{Topic: topic.Topic}
				for _, p := range topic.Partitions {
					refused = refused || p.Metadata != nil && *p.Metadata != ""
					of.Partitions = append(of.Partitions, kmsg.TxnOffsetCommitResponseTopicPartition{Partition: p.Partition, ErrorCode: kerr.OffsetMetadataTooLarge.Code})
				}
				response.Topics = append(response.Topics, of)
			}
			return response, nil, refused
		})
		c := newCopying(t, cluster.ListenAddrs(), 1000)
		meter := newMeter()
		process := newFaultNet(nth(kmsg.EndTxn, 3, loseAnswer))
		p := c.start(t, v.of(c.config(kafka.Config{Dial: process.dial, MeterProvider: meter.provider})), nil)
		c.await(t)
		p.stop(t)
		c.exactlyOnce(t)
		got := meter.collect(t)
		require.Zero(t, got["millrace.kafka.transaction.recoveries lost"])
		require.Equal(t, int64(1), got["millrace.kafka.transaction.recoveries committed"])
	})
}
