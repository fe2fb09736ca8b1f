package kafka_test

import (
	"fmt"
	"math/rand"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/transport/kafka"
)

// TestCompressionLevel: a higher level makes smaller batches, which readers understand as well.
func TestCompressionLevel(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	random := rand.New(rand.NewSource(1))
	for text.Len() < 100_000 {
		fmt.Fprintf(&text, "labour %d of family %d is complete; ", random.Intn(1000), random.Intn(100))
	}
	for compression, levels := range map[kafka.Compression][]int{kafka.Gzip: {1, 9}, kafka.Zstd: {1, 22}} {
		t.Run(compression.String(), func(t *testing.T) {
			t.Parallel()
			cluster := fake(t, kfake.SeedTopics(1, "topic"))
			sizes := make(chan int, len(levels))
			cluster.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
				cluster.KeepControl()
				sizes <- len(body(r.(*kmsg.ProduceRequest)))
				return nil, nil, false
			})
			for _, level := range levels {
				p := batcher(t, connect(t, kafka.Config{Brokers: cluster.ListenAddrs(), Producer: kafka.ProducerConfig{Compression: compression, CompressionLevel: level}}))
				require.NoError(t, p.Publish("topic", newMessage("", text.String())))
			}
			for _, r := range read(t, cluster.ListenAddrs(), "topic", len(levels)) {
				require.Equal(t, text.String(), string(r.Value))
				require.Equal(t, codecs[compression], r.Attrs.CompressionType())
			}
			low, high := <-sizes, <-sizes
			require.Less(t, high, low)
		})
	}
}

// TestCompressionInTransactions: what handlers publish is compressed as everything else is.
func TestCompressionInTransactions(t *testing.T) {
	t.Parallel()
	c := newCopying(t, fake(t).ListenAddrs(), 10)
	config := c.config(kafka.Config{Producer: kafka.ProducerConfig{Compression: kafka.Gzip, CompressionLevel: 9}})
	p := c.start(t, config, nil)
	c.await(t)
	p.stop(t)
	for _, r := range read(t, c.brokers, c.out, 10) {
		require.Equal(t, codecs[kafka.Gzip], r.Attrs.CompressionType())
	}
}
