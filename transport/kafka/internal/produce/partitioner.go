package produce

import (
	"hash/fnv"
	"sync/atomic"

	"github.com/IBM/sarama"
)

// Partitioner returns the partition, of n, that a key belongs to.
type Partitioner func(key []byte, n int32) int32

var javaPartitioner = sarama.NewMurmur2Partitioner("") // it has no state for messages with a key

// Murmur2 is the Partitioner of Apache Kafka's producers.
func Murmur2(key []byte, n int32) int32 {
	partition, _ := javaPartitioner.Partition(&sarama.ProducerMessage{Key: sarama.ByteEncoder(key)}, n) // bytes have no errors
	return partition
}

// FNV is the Partitioner of sarama, and so of watermill-kafka.
func FNV(key []byte, n int32) int32 {
	h := fnv.New32a()
	_, _ = h.Write(key)
	partition := int32(h.Sum32()) % n
	return max(partition, -partition)
}

// stickyBytes is how many bytes of messages a sticky Spread sends to one partition: the batch.size of Apache Kafka's producers, which do
// the same (KIP-794).
const stickyBytes = 16 << 10

// Spread distributes messages without a key over the partitions in turn. It is safe for concurrent use.
type Spread struct {
	turn uint64 // how many bytes of sent go to one partition
	sent atomic.Uint64
}

// NewSpread returns a Spread that changes the partition with each message or, if sticky is set, after stickyBytes.
func NewSpread(sticky bool) *Spread {
	if sticky {
		return &Spread{turn: stickyBytes}
	}
	return &Spread{turn: 1}
}

// Of returns the index of one of n partitions for a message of that many bytes. A message larger than a turn counts as one turn; counted
// as two, it would skip every second partition.
func (s *Spread) Of(n, bytes int) int {
	sent := min(uint64(bytes), s.turn)
	return int((s.sent.Add(sent) - sent) / s.turn % uint64(n))
}
