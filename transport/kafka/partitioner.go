package kafka

import (
	"hash/fnv"
	"sync/atomic"

	"github.com/IBM/sarama"
)

var javaPartitioner = sarama.NewMurmur2Partitioner("") // keeps nothing for messages with a key

// of returns the partition, of n, that the key belongs to.
func (p Partitioner) of(key []byte, n int32) int32 {
	if p == FNV {
		h := fnv.New32a()
		_, _ = h.Write(key)
		partition := int32(h.Sum32()) % n
		return max(partition, -partition)
	}
	partition, _ := javaPartitioner.Partition(&sarama.ProducerMessage{Key: sarama.ByteEncoder(key)}, n) // bytes have no errors
	return partition
}

// spread takes messages without a key to the partitions in turn. It is safe for concurrent use.
type spread struct{ next atomic.Uint32 }

// of returns one of the partitions, those that have a leader.
func (s *spread) of(partitions []int32) int32 {
	return partitions[int(s.next.Add(1)-1)%len(partitions)]
}
