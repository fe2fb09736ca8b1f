package claim

import (
	"fmt"
	"time"
)

// DefaultRedeliveryHorizon is how long Pub/Sub keeps a message by default.
const DefaultRedeliveryHorizon = 7 * 24 * time.Hour

// CheckWindow returns an error when a broker may redeliver an event longer than it is remembered that it was processed. The
// horizon counts from the moment when the event was minted: how long it may wait in the outbox, plus how long the broker
// keeps it, plus, where dead letters of the broker's own are sent back, how long those are kept.
func CheckWindow(retention, horizon time.Duration) error {
	if retention < horizon {
		return fmt.Errorf("Retention is %v, and RedeliveryHorizon %v: events that are redelivered after the retention are not run, "+
			"because nobody knows whether they were processed: want a retention of %v or more, or a broker that keeps events for less",
			retention, horizon, horizon)
	}
	return nil
}
