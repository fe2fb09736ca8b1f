package kafka

import (
	"context"

	"github.com/IBM/sarama"
)

// item is a message on its way. It is guarded by the producer's mutex.
type item struct {
	record    *sarama.Record
	key       string
	size      int             // at most so many bytes in a batch
	ctx       context.Context // of the message
	partition int32
	call      *call
	index     int // of its result
	settled   bool
}

// call is one call of the publisher.
type call struct {
	results []error
	left    int           // items without a result
	done    chan struct{} // closed with the last result
}

// waits reports whether the item has no result yet.
func (i *item) waits() bool { return !i.settled }

// settle gives the item its result. Its first one counts.
func (i *item) settle(err error) {
	if i.settled {
		return
	}
	i.settled = true
	i.call.results[i.index] = err
	i.call.left--
	if i.call.left == 0 {
		close(i.call.done)
	}
}

const (
	// batchOverhead is the framing of a batch (https://kafka.apache.org/documentation/#recordbatch).
	batchOverhead = 61
	// recordOverhead is the most that a record adds to its key, value and headers: seven varints and its attributes.
	recordOverhead = 6*5 + 10 + 1
	// headerOverhead is the most that a header adds to its name and value.
	headerOverhead = 2 * 5
)

// recordSize is at most how many bytes the record takes in a batch.
func recordSize(r *sarama.Record) int {
	n := recordOverhead + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += headerOverhead + len(h.Key) + len(h.Value)
	}
	return n
}
