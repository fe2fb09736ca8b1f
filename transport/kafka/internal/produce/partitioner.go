package produce

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"sync/atomic"

	"github.com/millrace-go/millrace/transport"
)

// Partitioner returns the partition, of n, that a key of a topic belongs to.
type Partitioner func(topic string, key []byte, n int32) (int32, error)

// Hash returns a Partitioner for which all topics are alike.
func Hash(of func(key []byte, n int32) int32) Partitioner {
	return func(_ string, key []byte, n int32) (int32, error) { return of(key, n), nil }
}

// Custom returns a Partitioner that checks what choose returns.
func Custom(choose func(topic, key string, partitions int) int) Partitioner {
	return func(topic string, key []byte, n int32) (int32, error) {
		chosen := choose(topic, string(key), int(n))
		if chosen < 0 || chosen >= int(n) {
			return 0, fmt.Errorf("%w: Config.Producer.PartitionBy chose partition %d of topic %s: want 0 to %d", transport.ErrRejected, chosen, topic, n-1)
		}
		return int32(chosen), nil
	}
}

// Murmur2 is the hash of Apache Kafka's producers: MurmurHash2 with their seed. That of sarama allocates memory for each key.
func Murmur2(key []byte, n int32) int32 {
	const m = 0x5bd1e995
	h := 0x9747b28c ^ uint32(len(key))
	for ; len(key) >= 4; key = key[4:] {
		k := binary.LittleEndian.Uint32(key) * m
		h = h*m ^ (k^k>>24)*m
	}
	for i := len(key) - 1; i >= 0; i-- {
		h ^= uint32(key[i]) << (8 * i)
	}
	if len(key) > 0 {
		h *= m
	}
	h = (h ^ h>>13) * m
	return int32((h^h>>15)&0x7fffffff) % n
}

// FNV is the hash of sarama, and so of watermill-kafka.
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
