package transport

import (
	"context"
	"errors"
	"time"
)

// Resetter is implemented by transports that can change the position at which a consumer reads a topic. Reset is safe for
// concurrent use.
type Resetter interface {
	// Reset sets the position. With Reset.DryRun it only returns what it would do. It returns a move for each partition that has
	// offsets; a broker without offsets returns none. Events behind the new position are delivered again with their IDs, also
	// handled ones.
	Reset(ctx context.Context, r Reset) ([]Move, error)
}

// Reset is a change of a consumer's position.
type Reset struct {
	Topic, Consumer string
	To              Position
	DryRun          bool
}

// Position is a place in a topic. Exactly one field is set.
type Position struct {
	Earliest bool            // the first message that the broker still has
	Latest   bool            // after the last message; on Pub/Sub after all messages published before the current time of this clock
	Time     time.Time       // the first message published at this time or later; the time must not be in the future
	Offsets  map[int32]int64 // by partition; the other partitions keep their offsets. Kafka only
	Snapshot string          // the name of a snapshot of the subscription. Pub/Sub only
}

// Move is the change of a consumer's offset in one partition.
type Move struct {
	Partition int32 `json:"partition"`
	From      int64 `json:"from"` // -1: the consumer had none
	To        int64 `json:"to"`
}

// ErrConsumerRuns is wrapped by an error of Reset if processes of the consumer are running: they would overwrite the position.
// Nothing was changed. Stop the processes and try again.
var ErrConsumerRuns = errors.New("processes of the consumer run")
