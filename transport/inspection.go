package transport

import (
	"context"
	"time"
)

// Inspection is what a broker knows about a topic and one of its consumers.
type Inspection struct {
	Topic    bool // whether the topic exists
	Consumer bool // whether the consumer's subscription exists, or its group has an offset

	// Retention is how long the broker keeps messages that the consumer has not acked. 0: unknown; negative: for ever.
	Retention time.Duration

	// Lag is the number of messages that the consumer has not acked. -1: unknown.
	Lag int64
}

// Inspector is implemented by transports that can inspect a broker. Inspect changes and creates nothing. If consumer is "", it
// inspects only the topic. It is safe for concurrent use.
type Inspector interface {
	Inspect(ctx context.Context, topic, consumer string) (Inspection, error)
}

// Addressed is implemented by transports and settings of brokers that have an address.
type Addressed interface {
	// Address is where the broker is, for people, without credentials.
	Address() string
}

// Problem is a setting at the broker that holds messages up, changes them or loses them.
type Problem struct {
	Symptom, Cause string
	Remedy         string // "": nothing to remedy, because the broker did not say whether there is a problem
}

// Examiner is implemented by transports that can look for problems in the settings of a topic and of one of its consumers. Examine
// changes and creates nothing. If consumer is "", it examines only the topic; what does not exist has no problems. It is safe for
// concurrent use.
type Examiner interface {
	Examine(ctx context.Context, topic, consumer string) ([]Problem, error)
}
