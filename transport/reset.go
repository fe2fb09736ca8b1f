package transport

import (
	"context"
	"errors"
	"time"
)

// Resetter is implemented by transports that can set where a consumer goes on reading a topic. Reset is safe for concurrent
// use.
type Resetter interface {
	// Reset sets it, or with Reset.DryRun only says what it would do. It returns a move for each partition that has offsets;
	// a broker without offsets returns none. Events that the consumer has handled are delivered again, with their IDs.
	Reset(ctx context.Context, r Reset) ([]Move, error)
}

// Reset is what a Resetter does.
type Reset struct {
	Topic, Consumer string
	To              Position
	DryRun          bool
}

// Position is a place in a topic. One field is set.
type Position struct {
	Earliest bool            // the first message that the broker still has
	Latest   bool            // behind the last message; on Pub/Sub behind those that were published before now by this clock
	Time     time.Time       // the first message that was published at this time or later; not one that is to come
	Offsets  map[int32]int64 // of some partitions; the others stay where they are. Kafka only
	Snapshot string          // a snapshot of the subscription, by its name. Pub/Sub only
}

// Move is the change of a consumer's offset in one partition.
type Move struct {
	Partition int32 `json:"partition"`
	From      int64 `json:"from"` // -1: the consumer had none
	To        int64 `json:"to"`
}

// ErrConsumerRuns is wrapped by an error of Reset: processes of the consumer run, which would overwrite the position. Nothing
// was changed. Stop them, and try again.
var ErrConsumerRuns = errors.New("processes of the consumer run")
