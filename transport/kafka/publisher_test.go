package kafka_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// read returns what the topic holds, in the order of each partition, once it holds n records. It fails when it holds more.
func read(t testing.TB, brokers []string, topic string, n int) []*kgo.Record {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	var records []*kgo.Record
	for len(records) < n {
		fetches := client.PollFetches(ctx)
		require.NoError(t, fetches.Err(), "%d of %d records", len(records), n)
		records = append(records, fetches.Records()...)
	}
	require.Len(t, records, n)
	return records
}

// payloads returns the values of a key's records.
func payloads(records []*kgo.Record, key string) []string {
	var got []string
	for _, r := range records {
		if string(r.Key) == key {
			got = append(got, string(r.Value))
		}
	}
	return got
}

func requireAll(t testing.TB, results []error) {
	t.Helper()
	for i, err := range results {
		require.NoError(t, err, "message %d", i)
	}
}

// codecs are what Kafka calls each compression.
var codecs = map[kafka.Compression]uint8{kafka.Uncompressed: 0, kafka.Gzip: 1, kafka.Snappy: 2, kafka.LZ4: 3, kafka.Zstd: 4}

// TestPublish shows what arrives on the wire, on every compression.
func TestPublish(t *testing.T) {
	t.Parallel()
	for compression, codec := range codecs {
		t.Run(compression.String(), func(t *testing.T) {
			t.Parallel()
			topic := devtest.Topic(t)
			p := batcher(t, connect(t, kafka.Config{Brokers: brokers(t), Producer: kafka.ProducerConfig{Compression: compression}}))
			msg := newMessage("key", "payload")
			msg.Metadata["name"] = "value"
			before := time.Now().Truncate(time.Millisecond)
			require.NoError(t, p.Publish(topic, msg, newMessage("", "no key")))
			records := read(t, brokers(t), topic, 2)
			if records[0].Key == nil {
				records[0], records[1] = records[1], records[0]
			}
			require.Equal(t, "payload", string(records[0].Value))
			require.Equal(t, "key", string(records[0].Key))
			require.ElementsMatch(t, []kgo.RecordHeader{{Key: "_watermill_message_uuid", Value: []byte(msg.UUID)}, {Key: "name", Value: []byte("value")}}, records[0].Headers)
			require.False(t, records[0].Timestamp.Before(before) || records[0].Timestamp.After(time.Now()))
			require.Nil(t, records[1].Key)
			require.Positive(t, records[0].ProducerID, "idempotent")
			require.Equal(t, codec, records[0].Attrs.CompressionType())
		})
	}
}

// TestManyPublishersKeepOrder: concurrent callers share requests, and each one's messages of a key are in its order.
func TestManyPublishersKeepOrder(t *testing.T) {
	t.Parallel()
	topic := devtest.Topic(t)
	p := batcher(t, connect(t, kafka.Config{Brokers: brokers(t)}))
	const callers, calls, n = 16, 10, 30
	var running sync.WaitGroup
	for c := range callers {
		running.Go(func() {
			for call := range calls {
				batch := make([]*message.Message, n)
				for i := range batch {
					batch[i] = newMessage(fmt.Sprint(c), fmt.Sprint(call*n+i))
				}
				requireAll(t, p.PublishBatch(t.Context(), topic, batch))
			}
		})
	}
	running.Wait()
	records := read(t, brokers(t), topic, callers*calls*n)
	want := make([]string, calls*n)
	for i := range want {
		want[i] = fmt.Sprint(i)
	}
	for c := range callers {
		require.Equal(t, want, payloads(records, fmt.Sprint(c)))
	}
}

// TestLargeMessages: what just fits in a topic of default size arrives, also when it cannot be compressed, and many of them
// are split over requests. What does not fit is refused here.
func TestLargeMessages(t *testing.T) {
	t.Parallel()
	topic := devtest.Topic(t)
	p := batcher(t, connect(t, kafka.Config{Brokers: brokers(t)}))
	random := rand.New(rand.NewSource(1))
	batch := make([]*message.Message, 40)
	for i := range batch {
		batch[i] = newMessage(fmt.Sprint(i%3), "")
		batch[i].Payload = make([]byte, kafka.Limits.MessageBytes-transport.Size(batch[i]))
		random.Read(batch[i].Payload)
	}
	requireAll(t, p.PublishBatch(t.Context(), topic, batch))
	for _, r := range read(t, brokers(t), topic, len(batch)) {
		require.GreaterOrEqual(t, len(r.Value), kafka.Limits.MessageBytes-40)
	}
	batch[0].Payload = append(batch[0].Payload, 0)
	require.ErrorIs(t, p.Publish(topic, batch[0]), transport.ErrLimit)
}

// TestPublishStopsAtItsContexts: a message whose context has ended is not sent, nor are the later ones of its key.
func TestPublishStopsAtItsContexts(t *testing.T) {
	t.Parallel()
	topic := devtest.Topic(t)
	p := batcher(t, connect(t, kafka.Config{Brokers: brokers(t)}))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	first := newMessage("k", "1")
	first.SetContext(ended)
	results := p.PublishBatch(t.Context(), topic, []*message.Message{first, newMessage("k", "2"), newMessage("other", "3")})
	require.ErrorIs(t, results[0], context.Canceled)
	require.ErrorIs(t, results[1], transport.ErrNotSent)
	require.NoError(t, results[2])
	require.Equal(t, "3", string(read(t, brokers(t), topic, 1)[0].Value))
}

func TestPublishAfterClose(t *testing.T) {
	t.Parallel()
	topic := devtest.Topic(t)
	tr := connect(t, kafka.Config{Brokers: brokers(t)})
	p := batcher(t, tr)
	require.NoError(t, p.Publish(topic, newMessage("", "x")))
	require.NoError(t, tr.Close())
	require.ErrorIs(t, p.Publish(topic, newMessage("", "x")), transport.ErrClosed)
	require.ErrorIs(t, p.Publish(devtest.Topic(t), newMessage("", "x")), transport.ErrClosed)
}

// BenchmarkPublishBatch reports messages per second.
func BenchmarkPublishBatch(b *testing.B) {
	p := batcher(b, connect(b, kafka.Config{Brokers: fake(b).ListenAddrs()}))
	batch := make([]*message.Message, 1000)
	for i := range batch {
		batch[i] = newMessage(fmt.Sprint(i), "")
		batch[i].Payload = bytes.Repeat([]byte("payload "), 128)
	}
	b.ReportAllocs()
	for b.Loop() {
		requireAll(b, p.PublishBatch(b.Context(), "topic", batch))
	}
	b.ReportMetric(float64(b.N)*float64(len(batch))/b.Elapsed().Seconds(), "msg/s")
}
