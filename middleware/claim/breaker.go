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

// Breaker pauses a consumer while what its handler needs is out, such as a provider: the events wait, and none becomes a dead letter.
// It needs failures of different events in a row, so an event that fails again and again while others succeed pauses nothing. Errors
// that are marked with Permanent, outages of the claim's own database, and errors that say when to retry are no failures here.
//
// Each process has its own breakers. In a pause an event that arrives is nacked, and comes back without an attempt. After the pause one
// event is tried; if it fails too, the next pause is twice as long. The first success ends the pause. Failures in a pause count no
// attempt, so each process counts less than Failures of them in an outage. None of these makes a dead letter, but the first one may,
// if it was its event's last attempt.
//
// A push subscription of Pub/Sub holds an event only for a part of its ack deadline. An event that waits longer is delivered
// again, and Pub/Sub counts that: with a dead-letter policy (pubsub.DeadLetter) an outage makes dead letters of events that no
// handler has seen. So give a push consumer under a claim no such policy: the claim keeps dead letters itself.
type Breaker struct {
	// Failures is how many failures in a row pause the consumer, each of another event than the one before. From 2; 10 suits most
	// consumers; -1 is never, for one consumer in Config.Handlers. Default: 0, never; of a handler: the claim's.
	Failures int

	// Pause is how long the first pause lasts, less a random quarter. Default: 1 s; of a handler: the claim's.
	Pause time.Duration

	// MaxPause is how long a pause may become. It is also how long the consumer may go on pausing when all is well again. Default: 30
	// s, or Pause if that is longer; of a handler: the claim's.
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

// breakerOf is the consumer's, whose fields come first. Failures is 0 where it has none.
func (c Config) breakerOf(consumer string) Breaker {
	of := c.of(consumer).Breaker
	b := Breaker{Failures: cmp.Or(of.Failures, c.Breaker.Failures), Pause: cmp.Or(of.Pause, c.Breaker.Pause), MaxPause: cmp.Or(of.MaxPause, c.Breaker.MaxPause)}
	switch {
	case b.Failures <= 0:
		return Breaker{}
	case of.Pause == 0 && b.MaxPause > 0: // each bounds what the other one left open
		b.Pause = min(b.Pause, b.MaxPause)
	case of.MaxPause == 0 && b.MaxPause > 0:
		b.MaxPause = max(b.MaxPause, b.Pause)
	}
	return b.withDefaults()
}

// validate expects the claim's own to have its defaults; a handler's has none.
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

// Pause is a consumer that its breaker has paused.
type Pause struct {
	Consumer string    `json:"consumer"`
	Since    time.Time `json:"since"`
	Until    time.Time `json:"until"`             // no event is tried before; in the past while one is tried, or until one comes
	Error    string    `json:"error"`             // of the event that failed last
	Process  string    `json:"process,omitempty"` // host and process, where a database was asked
}

// maxPauseError is how many bytes of an error a Pause has.
const maxPauseError = 500

// Paused returns the consumers that are paused in this process.
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

// maxTurnedAway is how long an event that arrives in a pause, or whose key is full, is nacked for: once that ends it is soon back.
const maxTurnedAway = 5 * time.Second

// breaker is that of one consumer. It is safe for concurrent use. nil, where there is none, admits all.
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

// admit reports whether the event may be handled now. If not it is nacked. A message that was acked too early is admitted in any case,
// because nobody would redeliver it.
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

// admitted tells the breaker that the event, which was admitted, is over.
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

// excuse tells the breaker that a handler has failed, and returns the fault as it is seen with those of other events.
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

// retries is how many events of the table may be brought back, with so much room for them.
func (c *Claim) retries(consumer string, room int) int {
	c.breaker(consumer).with(func(of *circuit.Breaker) { room = of.Retries(room, time.Now()) })
	return room
}
