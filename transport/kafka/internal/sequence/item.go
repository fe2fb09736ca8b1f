package sequence

import (
	"context"

	"github.com/IBM/sarama"
)

// Item is a message on its way. It is guarded by the producer's mutex.
type Item struct {
	Record    *sarama.Record
	Key       string
	Size      int             // at most so many bytes in a batch
	Ctx       context.Context // of the message
	Partition int32
	Call      *Call
	Index     int // of its result
	settled   bool
}

// Call is one call of the publisher.
type Call struct {
	Results []error
	Left    int           // items without a result
	Done    chan struct{} // closed with the last result
}

// Waits reports whether the item has no result yet.
func (i *Item) Waits() bool { return !i.settled }

// settle gives the item its result. Its first one counts.
func (i *Item) settle(err error) {
	if i.settled {
		return
	}
	i.settled = true
	i.Call.Results[i.Index] = err
	i.Call.Left--
	if i.Call.Left == 0 {
		close(i.Call.Done)
	}
}
