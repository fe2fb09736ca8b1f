package main

import (
	"context"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A copier that loses a message, copies one twice or leaves a transaction open gets no figure.
func TestHalfACopierIsAnError(t *testing.T) {
	t.Parallel()
	const rows = 20
	copies := func(produce func(c *cluster, outputs []*kgo.Record)) error {
		k := &kafkaBench{rounds: rounds{env: &environment{size: size{rows: rows, box: 500 * time.Millisecond}}}, taps: map[string][]*tap{}, told: map[string]bool{}}
		who := copier{name: "somebody", done: (*cluster).produced, start: func(_ context.Context, c *cluster, _ *tap) (func() error, error) {
			produce(c, outputs(t, c, rows))
			return func() error { return nil }, nil
		}}
		_, err := k.copying(place{open: openKfake}, who).measure(t.Context())
		return err
	}
	produce := func(c *cluster, outputs []*kgo.Record) {
		require.NoError(t, c.client.ProduceSync(t.Context(), outputs...).FirstErr())
	}
	require.NoError(t, copies(produce))
	require.ErrorContains(t, copies(func(c *cluster, outputs []*kgo.Record) {
		produce(c, outputs[1:])
	}), "not all of 20 messages came within 500ms")
	require.ErrorContains(t, copies(func(c *cluster, outputs []*kgo.Record) {
		again := *outputs[1]
		produce(c, append(outputs[1:], &again))
	}), "published 20 events with 19 IDs")
	require.ErrorContains(t, copies(func(c *cluster, outputs []*kgo.Record) {
		produce(c, outputs)
		again := *outputs[0]
		unfinished, err := kgo.NewClient(kgo.SeedBrokers(c.brokers...), kgo.TransactionalID("unfinished"))
		require.NoError(t, err)
		t.Cleanup(unfinished.Close)
		require.NoError(t, unfinished.BeginTransaction())
		require.NoError(t, unfinished.ProduceSync(t.Context(), &again).FirstErr())
	}), "a transaction was left open")
	aborted := func(c *cluster, outputs []*kgo.Record) {
		client, err := kgo.NewClient(kgo.SeedBrokers(c.brokers...), kgo.TransactionalID("aborted"))
		require.NoError(t, err)
		defer client.Close()
		require.NoError(t, client.BeginTransaction())
		require.NoError(t, client.ProduceSync(t.Context(), outputs...).FirstErr())
		require.NoError(t, client.EndTransaction(t.Context(), kgo.TryAbort))
	}
	require.ErrorContains(t, copies(aborted), "20 are missing")
}

// outputs are what is right for the input topic's records.
func outputs(t *testing.T, c *cluster, n int) (all []*kgo.Record) {
	reader, err := kgo.NewClient(kgo.SeedBrokers(c.brokers...), kgo.ConsumeTopics(c.in), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(t, err)
	defer reader.Close()
	for len(all) < n {
		fetches := reader.PollFetches(t.Context())
		require.NoError(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			all = append(all, &kgo.Record{Topic: c.out, Key: r.Key, Value: r.Value, Headers: r.Headers})
		})
	}
	return all
}

// The contestants' progress is what their readers see, and the tap's count what the brokers were asked.
func TestFranzGoIsCounted(t *testing.T) {
	t.Parallel()
	const rows, batch = 40, 10
	k := &kafkaBench{rounds: rounds{env: &environment{size: size{rows: rows, box: recordTimeout}}}, taps: map[string][]*tap{}, told: map[string]bool{}}
	rate, err := k.copying(place{open: openKfake}, franzGo(batch)).measure(t.Context())
	require.NoError(t, err)
	assert.Positive(t, rate)
	counted := k.taps[franzGo(batch).name+"_0ms"][0]
	assert.GreaterOrEqual(t, counted.committed, rows/batch)
	requests := counted.perTransaction(rows)
	assert.InDelta(t, 0, requests[0]+requests[1], 0, "AddPartitions and AddOffsets, of which newer brokers want none")
	assert.InDelta(t, 1, requests[2], 0, "TxnOffsetCommit")
	assert.InDelta(t, 1, requests[3], 0, "EndTxn")
	assert.Positive(t, requests[4], "Produce")
}

func TestFramesInAnyPieces(t *testing.T) {
	t.Parallel()
	var stream []byte
	var want []string
	for _, body := range []string{"a", "elevenchars", "much longer than the head that is looked at", "12"} {
		stream = binary.BigEndian.AppendUint32(stream, uint32(len(body)))
		stream = append(stream, body...)
		want = append(want, body[:min(len(body), 11)])
	}
	for size := 1; size <= len(stream); size++ {
		var heads []string
		f := frames{read: func(head []byte) { heads = append(heads, string(head)) }}
		for piece := range slices.Chunk(stream, size) {
			f.feed(piece)
		}
		require.Equal(t, want, heads, "in pieces of %d", size)
	}
}
