package conn

import (
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLatestReadsPastEmptiedBatches: the last batch of what compaction has cleaned may be one without records, which sarama drops. The
// newest note follows it.
func TestLatestReadsPastEmptiedBatches(t *testing.T) {
	t.Parallel()
	const topic, end = "notes", 8
	answer := func(records func(r *sarama.FetchResponse)) sarama.MockResponse {
		r := &sarama.FetchResponse{Version: unreadVersion}
		r.AddError(topic, 0, sarama.ErrNoError)
		records(r)
		r.SetLastStableOffset(topic, 0, end)
		return sarama.NewMockWrapper(r)
	}
	note := func(value string, offset int64) sarama.MockResponse {
		return answer(func(r *sarama.FetchResponse) {
			r.AddRecordBatch(topic, 0, sarama.StringEncoder("3"), sarama.StringEncoder(value), offset, 1, true)
		})
	}
	broker := sarama.NewMockBroker(t, 1)
	defer broker.Close()
	broker.SetHandlerByMap(map[string]sarama.MockResponse{
		"MetadataRequest": sarama.NewMockMetadataResponse(t).SetBroker(broker.Addr(), broker.BrokerID()).SetLeader(topic, 0, broker.BrokerID()),
		"OffsetRequest":   sarama.NewMockOffsetResponse(t).SetOffset(topic, 0, sarama.OffsetOldest, 0).SetOffset(topic, 0, sarama.OffsetNewest, end),
		"FetchRequest":    sarama.NewMockSequence(note("old", 2), answer(func(*sarama.FetchResponse) {}), note("new", 6), note("new", 7)),
	})
	config := sarama.NewConfig()
	config.Version, config.ApiVersionsRequest = sarama.V2_8_0_0, false
	client, err := sarama.NewClient([]string{broker.Addr()}, config)
	require.NoError(t, err)
	defer client.Close()
	value, err := Latest(t.Context(), client, topic, 0, "3")
	require.NoError(t, err)
	require.Equal(t, "new", string(value))
}

// TestAbortedTransactionsInAnyOrder: not every broker lists them in their order.
func TestAbortedTransactionsInAnyOrder(t *testing.T) {
	t.Parallel()
	a := abortedBy([]*sarama.AbortedTransaction{{ProducerID: 1, FirstOffset: 20}, {ProducerID: 1, FirstOffset: 10}, {ProducerID: 2, FirstOffset: 5}})
	assert.True(t, a.has(&sarama.RecordBatch{ProducerID: 1, FirstOffset: 10}))
	assert.False(t, a.has(&sarama.RecordBatch{ProducerID: 1, FirstOffset: 9}))
}
