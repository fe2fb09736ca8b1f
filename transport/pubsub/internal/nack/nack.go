// Package nack decides what happens to a nacked message. It does no I/O and has no clock.
package nack

import "time"

const (
	// Delay is the nack delay if neither the handler nor a retry policy sets one. Without it Pub/Sub would redeliver at once, and a
	// handler that fails fast would run in a hot loop.
	Delay = 100 * time.Millisecond
	// DeadLetterDelay is the nack delay of a message that could not be sent to the dead-letter topic.
	DeadLetterDelay = time.Second
)

// Policy is a subscription's policy for messages whose handlers fail.
type Policy struct {
	MaxAttempts        int           // after which a message is dead; 0: Pub/Sub does not count deliveries
	RetryMin, RetryMax time.Duration // both 0: Pub/Sub redelivers without a delay
}

// Counts reports whether Pub/Sub counts deliveries or delays redelivery.
func (p Policy) Counts() bool { return p.MaxAttempts > 0 || p.retries() }

func (p Policy) retries() bool { return p.RetryMin != 0 || p.RetryMax != 0 }

// Nack is a failed delivery.
type Nack struct {
	Ordered  bool // the message has a key, and the subscription keeps the order
	Rejected bool
	Wish     time.Duration // the delay that the handler asked for; with one, the nack is no failure of the message
	Attempts int           // so far
	Retries  int           // the failures before this one since Pub/Sub delivered the message
}

// Fate is what happens to a message.
type Fate struct {
	Dead    bool          // it goes to the dead-letter topic; the other fields apply if it cannot be sent there
	Wait    time.Duration // the nack delay
	InPlace bool          // afterwards this process delivers it again; otherwise it goes back to Pub/Sub
	Failed  bool          // the nack counts as a failure
}

// After returns what happens to a message after a nack.
//
// This process itself redelivers some messages. It redelivers messages in order, because Google's client may already hold later messages
// of their keys, which would overtake them. It also redelivers messages whose handler asked for a delay (contention) if Pub/Sub would
// count that as a failure or apply its own delay.
func (p Policy) After(n Nack) Fate {
	f := Fate{InPlace: n.Ordered, Failed: !n.Rejected && n.Wish <= 0}
	switch {
	case n.Rejected:
		f.Dead, f.Wait = true, DeadLetterDelay
	case n.Wish > 0:
		f.InPlace, f.Wait = n.Ordered || p.Counts(), n.Wish
	case n.Ordered && p.MaxAttempts > 0 && n.Attempts >= p.MaxAttempts:
		f.Dead, f.Wait = true, DeadLetterDelay
	default:
		f.Wait = p.wait(n.Retries, f.InPlace)
	}
	return f
}

// wait returns the nack delay of a message without a wish. In place, the retry policy applies here; otherwise Pub/Sub applies it.
func (p Policy) wait(retries int, inPlace bool) time.Duration {
	switch {
	case !p.retries():
		return Delay
	case !inPlace:
		return 0
	}
	wait := max(p.RetryMin, Delay)
	for range retries {
		if wait >= p.RetryMax {
			break
		}
		wait *= 2
	}
	return min(wait, max(p.RetryMax, Delay))
}
