package transport

import (
	"context"
	"time"
)

// Inspection is what a broker tells of a topic and of a consumer of it.
type Inspection struct {
	Topic    bool // it exists
	Consumer bool // its subscription exists, or its group has an offset

	// Retention is for how long the broker keeps what the consumer has not acked; 0: it does not tell; less: for ever.
	Retention time.Duration

	// Lag is how many messages the consumer has not acked; -1: the broker does not tell.
	Lag int64
}

// Inspector is implemented by transports that can look at a broker. Inspect changes and creates nothing; consumer may be ""
// for the topic alone. It is safe for concurrent use.
type Inspector interface {
	Inspect(ctx context.Context, topic, consumer string) (Inspection, error)
}
