package lane

import (
	"time"

	"github.com/millrace-go/millrace/transport/kafka/internal/backoff"
)

// Outcome is how one delivery ended.
type Outcome int

// The outcomes.
const (
	Acked     Outcome = iota
	Nacked            // also after a rejection
	Abandoned         // its handler was still running when the drain timeout ended
	Withdrawn         // no handler got it
)

// String is the outcome as metrics and traces name it.
func (o Outcome) String() string {
	return [...]string{Acked: "acked", Nacked: "nacked", Abandoned: "abandoned", Withdrawn: "withdrawn"}[o]
}

// Fate is what becomes of a record after a delivery.
type Fate int

// The fates.
const (
	Finished Fate = iota
	Again         // it is delivered again after the wait
	Dead          // it goes to the dead-letter topic
	Dropped       // nothing: nobody knows what the handler did
)

// Policy is what becomes of records whose deliveries fail.
type Policy struct {
	MaxAttempts int // the failures after which a record is dead; 0 is any number
	Retry       backoff.Doubling
}

// Decide tells the fate of a record whose delivery had this outcome, and for Again the wait. failures are those before it, and
// failed those after it. wish is the delay that the handler asked for; with one a nack is no failure.
func (p Policy) Decide(o Outcome, rejected bool, failures int, wish time.Duration) (f Fate, failed int, wait time.Duration) {
	switch {
	case o == Acked:
		return Finished, failures, 0
	case o == Abandoned:
		return Dropped, failures, 0
	case wish <= 0:
		failures++
		wait = p.Retry.Wait(failures)
	default: // contention, say
		wait = wish
	}
	if rejected || wish <= 0 && p.MaxAttempts > 0 && failures >= p.MaxAttempts {
		return Dead, failures, 0
	}
	return Again, failures, wait
}
