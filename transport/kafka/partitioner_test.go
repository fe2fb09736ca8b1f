package kafka

import (
	"fmt"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Keys go where the other producers of a topic take them.
func TestPartitioners(t *testing.T) {
	java := kgo.StickyKeyPartitioner(nil).ForTopic("topic")
	others := sarama.NewHashPartitioner("topic")
	for i := range 1000 {
		key := fmt.Appendf(nil, "key-%d", i*i)
		for _, n := range []int32{1, 4, 7} {
			require.Equal(t, java.Partition(&kgo.Record{Key: key}, int(n)), int(Murmur2.of(key, n)))
			want, err := others.Partition(&sarama.ProducerMessage{Key: sarama.ByteEncoder(key)}, n)
			require.NoError(t, err)
			require.Equal(t, want, FNV.of(key, n))
		}
	}
}

func TestSpread(t *testing.T) {
	var s spread
	var got []int32
	for range 5 {
		got = append(got, s.of([]int32{0, 2, 3}))
	}
	require.Equal(t, []int32{0, 2, 3, 0, 2}, got)
}
