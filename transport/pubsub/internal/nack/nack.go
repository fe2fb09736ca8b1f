// Package nack decides what becomes of a nacked message. It does no I/O and has no clock.
package nack

import "time"

const (
	// Delay is how long a nacked message is held when neither the handler nor a retry policy says: Pub/Sub would
	// redeliver it at once, and a handler that fails fast would run in a hot loop.
	Delay = 100 * time.Millisecond
	// DeadLetterDelay is the same for a message that should be in the dead-letter topic and could not be sent there.
	DeadLetterDelay = time.Second
)

// Policy is what a subscription has for messages whose handlers fail.
type Policy struct {
	MaxAttempts        int           // after which a message is dead; 0: Pub/Sub counts no deliveries
	RetryMin, RetryMax time.Duration // both 0: Pub/Sub does not wait before it delivers again
}

// Counts tells whether Pub/Sub counts deliveries, or waits before the next one.
func (p Policy) Counts() bool { return p.MaxAttempts > 0 || p.retries() }

func (p Policy) retries() bool { return p.RetryMin != 0 || p.RetryMax != 0 }

// Nack is a delivery that failed.
type Nack struct {
	Ordered  bool // the message has a key, and their order is kept
	Rejected bool
	Wish     time.Duration // the delay that the handler asked for: with one the nack is no failure of the message
	Attempts int           // so far
	Retries  int           // the failures before this one, since Pub/Sub has delivered the message
}

// Fate is what becomes of a message.
type Fate struct {
	Dead    bool          // it goes to the dead-letter topic; the rest is for when it could not be sent there
	Wait    time.Duration // how long it is held
	InPlace bool          // then it is delivered again from here; otherwise it goes back to Pub/Sub
	Failed  bool          // it has failed once more
}

// After is what becomes of a message after a nack.
//
// Some messages are delivered again from here, not by Pub/Sub. Ordered ones, because Google's client may hold later messages of
// their keys already, and these would overtake them. And those whose handler asked for a delay (contention) where Pub/Sub would
// count that against the message or let it wait by its own policy.
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

// wait is how long a message is held that was nacked without a wish: by the retry policy when it comes again in place,
// else Pub/Sub heeds that.
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
