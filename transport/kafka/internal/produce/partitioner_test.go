package produce

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
			require.Equal(t, java.Partition(&kgo.Record{Key: key}, int(n)), int(Murmur2(key, n)))
			want, err := others.Partition(&sarama.ProducerMessage{Key: sarama.ByteEncoder(key)}, n)
			require.NoError(t, err)
			require.Equal(t, want, FNV(key, n))
		}
	}
	key := []byte("key")
	require.Zero(t, testing.AllocsPerRun(100, func() { Murmur2(key, 7) }))
}

func TestSpread(t *testing.T) {
	s := NewSpread(false)
	var got []int
	for range 5 {
		got = append(got, s.Of(3, 1000))
	}
	require.Equal(t, []int{0, 1, 2, 0, 1}, got)
}

// A sticky spread stays with a partition, and each gets as much in the end, whatever the size of the messages is.
func TestStickySpread(t *testing.T) {
	for _, size := range []int{100, stickyBytes / 2, stickyBytes, 2 * stickyBytes} {
		s := NewSpread(true)
		got, changes, last := make([]int, 4), 0, -1
		n := 400 * stickyBytes / min(size, stickyBytes)
		for range n {
			i := s.Of(len(got), size)
			got[i]++
			if i != last {
				last = i
				changes++
			}
		}
		for _, messages := range got {
			require.InDelta(t, n/len(got), messages, 2, "%d bytes: %v", size, got)
		}
		require.InDelta(t, 400, changes, 1, "%d bytes", size)
	}
}

func TestCustomPartitioner(t *testing.T) {
	for chosen, fine := range map[int]bool{-1: false, 0: true, 2: true, 3: false, 1 << 30: false} {
		got, err := Custom(func(string, string, int) int { return chosen })("topic", []byte("key"), 3)
		require.Equal(t, fine, err == nil)
		if fine {
			require.EqualValues(t, chosen, got)
		}
	}
}
