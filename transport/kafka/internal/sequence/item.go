package sequence

import (
	"context"

	"github.com/IBM/sarama"
)

// Item is a message to be sent. It is guarded by the producer's mutex.
type Item struct {
	Record    *sarama.Record
	Key       string
	Size      int             // its largest size in a batch, in bytes
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

// settle sets the item's result. Only the first one counts.
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
