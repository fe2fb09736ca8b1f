package claim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/middleware/claim/internal/circuit"
	"github.com/millrace-go/millrace/middleware/claim/internal/fault"
	"github.com/millrace-go/millrace/middleware/claim/internal/redelivery"
	"github.com/millrace-go/millrace/middleware/claim/internal/telemetry"
	"github.com/millrace-go/millrace/middleware/internal/inbox"
)

// Breaker pauses a consumer while something that its handler needs, such as a provider, is out. Meanwhile events wait, and none becomes a
// dead letter. Only failures of different events in a row open it, so one event that fails again and again pauses nothing. Errors marked
// with Permanent, outages of the claim's own database, and errors that say when to retry do not count as failures here.
//
// Each process has its own breakers. During a pause an event that arrives is nacked, and no attempt is counted. After the pause one event
// is tried. If it fails too, the next pause is twice as long. The first success ends the pause. Failures during a pause count no attempt, so
// an outage costs each process fewer attempts than Failures. Of these attempts only the first can make a dead letter, if it was the last
// attempt of its event. So where nothing else arrives, some events that always fail look like an outage, and stay paused until another
// event of the consumer succeeds, or until somebody discards them.
//
// A push subscription of Pub/Sub can hold an event only for part of its ack deadline. If the event waits longer, Pub/Sub delivers it again
// and counts that delivery. With a dead-letter policy (pubsub.DeadLetter) an outage then makes dead letters of events that no handler has
// seen. So give a push consumer under a claim no such policy: the claim keeps dead letters itself.
type Breaker struct {
	// Failures is the number of failures in a row that pause the consumer, each of another event than the one before. 2 or more; 10 suits
	// most consumers. In Config.Handlers -1 means never. Default: 0, never; for a handler: the claim's value.
	Failures int

	// Pause is how long the first pause lasts, minus a random amount of up to a quarter. Default: 1 s; for a handler: the claim's value.
	Pause time.Duration

	// MaxPause is the longest pause. It also bounds how long the consumer may stay paused after the outage has ended. Default: 30 s, or
	// Pause if that is longer; for a handler: the claim's value.
	MaxPause time.Duration
}

func (b Breaker) withDefaults() Breaker {
	if b.Failures == 0 {
		return b
	}
	if b.Pause == 0 {
		b.Pause = time.Second
		if b.MaxPause > 0 {
			b.Pause = min(b.Pause, b.MaxPause)
		}
	}
	if b.MaxPause == 0 {
		b.MaxPause = max(30*time.Second, b.Pause)
	}
	return b
}

// breakerOf returns a consumer's breaker configuration: its own fields, then those of Config.Breaker. Failures is 0 for no breaker.
func (c Config) breakerOf(consumer string) Breaker {
	of := c.of(consumer).Breaker
	b := Breaker{Failures: cmp.Or(of.Failures, c.Breaker.Failures), Pause: cmp.Or(of.Pause, c.Breaker.Pause), MaxPause: cmp.Or(of.MaxPause, c.Breaker.MaxPause)}
	switch {
	case b.Failures <= 0:
		return Breaker{}
	case of.Pause == 0 && b.MaxPause > 0: // a field that the handler sets bounds the one that it leaves to the claim
		b.Pause = min(b.Pause, b.MaxPause)
	case of.MaxPause == 0 && b.MaxPause > 0:
		b.MaxPause = max(b.MaxPause, b.Pause)
	}
	return b.withDefaults()
}

// validate expects a claim's Breaker to have its defaults already, and a handler's Breaker to have none.
func (b Breaker) validate(field string, least int) error {
	var errs []error
	if b.Failures < least || b.Failures == 1 {
		none := "0 for no breaker"
		if least < 0 {
			none = "-1 for no breaker, or 0 for that of other handlers"
		}
		errs = append(errs, fmt.Errorf("%s.Failures is %d: want 2 or more, or %s", field, b.Failures, none))
	}
	switch {
	case b.Failures == least && (b.Pause != 0 || b.MaxPause != 0):
		errs = append(errs, fmt.Errorf("%s.Failures is %d, for no breaker, beside a pause: want 2 or more, such as 10", field, least))
	case b.Pause != 0 && b.Pause < time.Millisecond:
		errs = append(errs, fmt.Errorf("%s.Pause is %v: want 1ms or more, or 0 for the default", field, b.Pause))
	case b.MaxPause != 0 && b.MaxPause < max(b.Pause, time.Millisecond):
		errs = append(errs, fmt.Errorf("%s.MaxPause is %v: want Pause (%v) and 1ms or more, or 0 for the default", field, b.MaxPause, b.Pause))
	}
	return errors.Join(errs...)
}

// Pause describes a consumer that its breaker has paused.
type Pause struct {
	Consumer string    `json:"consumer"`
	Since    time.Time `json:"since"`
	Until    time.Time `json:"until"`             // no event is tried before; it is in the past while an event is tried, or until one arrives
	Error    string    `json:"error"`             // the error of the event that failed last
	Process  string    `json:"process,omitempty"` // host and process; empty in what Claim.Paused returns
}

// maxPauseError is the number of bytes of the error that a Pause keeps.
const maxPauseError = 500

// Paused returns the consumers that are paused in this process, sorted by name.
func (c *Claim) Paused() (all []Pause) {
	c.breakers.Range(func(consumer, b any) bool {
		b.(*breaker).with(func(of *circuit.Breaker) {
			if since, err := of.Paused(); !since.IsZero() {
				all = append(all, Pause{Consumer: consumer.(string), Since: since, Until: of.Until(), Error: inbox.Printable(err.Error(), maxPauseError)})
			}
		})
		return true
	})
	slices.SortFunc(all, func(a, b Pause) int { return strings.Compare(a.Consumer, b.Consumer) })
	return all
}

// maxTurnedAway is the longest nack delay of an event that arrives during a pause, or whose key is full. So it returns soon after that ends.
const maxTurnedAway = 5 * time.Second

// breaker is the breaker of one consumer. It is safe for concurrent use. A nil breaker admits every event.
type breaker struct {
	mu sync.Mutex
	of *circuit.Breaker
}

func (b *breaker) with(fn func(of *circuit.Breaker)) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	fn(b.of)
}

func (c *Claim) breaker(consumer string) *breaker {
	if b, ok := c.breakers.Load(consumer); ok {
		return b.(*breaker)
	}
	cfg := c.cfg.breakerOf(consumer)
	if cfg.Failures == 0 {
		return nil
	}
	b, loaded := c.breakers.LoadOrStore(consumer, &breaker{of: circuit.New(circuit.Config{Failures: cfg.Failures, Pause: cfg.Pause, MaxPause: cfg.MaxPause, Jitter: fault.Jitter})})
	if !loaded {
		c.observer.Pause(consumer, false)
	}
	return b.(*breaker)
}

// admit reports whether the event may be handled now. If not, the event is nacked. A message that was acked too early is always admitted,
// because the broker would not redeliver it.
func (c *Claim) admit(ctx context.Context, key Key, msg *message.Message) (admitted bool, err error) {
	var wait time.Duration
	admitted = true
	c.breaker(key.Consumer).with(func(of *circuit.Breaker) {
		wait, admitted = of.Admit(key.EventID, redelivery.From(ctx).Row() == nil, time.Now())
	})
	if admitted || ackedEarly(msg) {
		return true, nil
	}
	c.observer.Count(ctx, key.Consumer, telemetry.OutcomePaused)
	return false, c.comeBack(msg, max(fault.Jitter(min(wait, maxTurnedAway)), time.Millisecond))
}

// admitted tells the breaker that the handling of an admitted event has ended.
func (c *Claim) admitted(key Key) {
	c.breaker(key.Consumer).with(func(of *circuit.Breaker) { of.Done(key.EventID) })
}

// worked tells the breaker that a handler has succeeded.
func (c *Claim) worked(ctx context.Context, consumer string) {
	var paused time.Duration
	var was bool
	c.breaker(consumer).with(func(of *circuit.Breaker) { paused, was = of.Succeeded(time.Now()) })
	if was {
		c.observer.Pause(consumer, false)
		c.cfg.Logger.InfoContext(ctx, "consumer goes on: an event was handled", "consumer", consumer, "paused_for", paused)
		c.redelivery.Wake(consumer)
	}
}

// excuse tells the breaker that a handler has failed. It returns the fault, changed where failures of other events make an outage likely.
func (c *Claim) excuse(ctx context.Context, key Key, f fault.Fault, err error) fault.Fault {
	if !f.Counted || f.Hopeless || f.Ignored || f.Reason != fault.ReasonError && f.Reason != fault.ReasonPanic && f.Reason != fault.ReasonDeadline {
		return f
	}
	verdict := circuit.Counts
	c.breaker(key.Consumer).with(func(of *circuit.Breaker) { verdict = of.Failed(key.EventID, err, time.Now()) })
	switch verdict {
	case circuit.Counts:
	case circuit.Pauses:
		c.observer.Pause(key.Consumer, true)
		c.cfg.Logger.WarnContext(ctx, "consumer pauses: different events failed in a row, so what its handler needs may be out; no attempts are counted meanwhile, and it goes on by itself",
			"consumer", key.Consumer, "failures", c.cfg.breakerOf(key.Consumer).Failures, "error", err)
		fallthrough
	case circuit.Spared:
		return fault.Fault{Reason: fault.ReasonOutage, After: fault.OutageDelay}
	case circuit.Doubtful:
		f.Doubtful = true
	}
	return f
}

// retries returns how many events of the table may be redelivered now, at most room.
func (c *Claim) retries(consumer string, room int) int {
	c.breaker(consumer).with(func(of *circuit.Breaker) { room = of.Retries(room, time.Now()) })
	return room
}
