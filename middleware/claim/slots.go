package claim

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/middleware/claim/internal/fault"
	"github.com/millrace-go/millrace/middleware/claim/internal/redelivery"
	"github.com/millrace-go/millrace/middleware/claim/internal/slot"
	"github.com/millrace-go/millrace/middleware/claim/internal/telemetry"
)

// At most MaxPerKey events of a key are handled at once. A slot is an advisory lock that the handler's transaction holds, so it is free
// again however that ends. Which events of this process may try for one is decided without the database (internal/slot).

// maxSlots bounds MaxPerKey: a try asks for one slot after the other.
const maxSlots = 100

// slots are those of a process. They are safe for concurrent use.
type slots struct {
	mu sync.Mutex
	of slot.Slots
}

// limited is an event of a key whose events are limited. nil: it is not.
type limited struct {
	claim   *Claim
	of      slot.Key
	event   string
	slots   int
	refused bool
}

// busyError means that as many events of the key are handled as may be.
type busyError struct{}

func (*busyError) Error() string { return "as many events of this key are handled as may be at once" }

// limit finds out whether the event's key is limited. An error is Config.LimitKey's.
func (c *Claim) limit(key Key, msg *message.Message) (l *limited, err error) {
	n := c.cfg.perKey(key.Consumer)
	if n == 0 {
		return nil, nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: fmt.Sprintf("Config.LimitKey: %v", v), Stack: debug.Stack()}
		}
	}()
	name := c.cfg.LimitKey(msg)
	if name == "" {
		return nil, nil
	}
	return &limited{claim: c, of: slot.Key{Consumer: key.Consumer, Name: name}, event: key.EventID, slots: n}, nil
}

// enter reports whether the event may try for a slot, and in which time it may come again otherwise. leave must follow if it may.
func (l *limited) enter() (wait time.Duration, ok bool) {
	if l == nil {
		return 0, true
	}
	l.claim.slots.mu.Lock()
	defer l.claim.slots.mu.Unlock()
	return l.claim.slots.of.Enter(l.of, l.event, l.slots, time.Now())
}

func (l *limited) leave() {
	if l == nil {
		return
	}
	l.claim.slots.mu.Lock()
	defer l.claim.slots.mu.Unlock()
	l.claim.slots.of.Leave(l.of, l.event, l.refused, time.Now())
}

// take takes a slot until the end of the transaction that ctx carries. It returns a busyError when other processes have them all.
func (l *limited) take(ctx context.Context) error {
	if l == nil {
		return nil
	}
	got, err := l.claim.postgres.TakeSlot(ctx, l.of.Consumer, l.of.Name, l.slots)
	if err != nil {
		return fmt.Errorf("take a slot of the key: %w", err)
	}
	if l.refused = !got; l.refused {
		return &busyError{}
	}
	return nil
}

// busy nacks an event that waits for a slot.
func (c *Claim) busy(ctx context.Context, key Key, msg *message.Message, wait time.Duration) error {
	c.observer.Count(ctx, key.Consumer, telemetry.OutcomeLimited)
	if redelivery.From(ctx).Row() != nil {
		wait = max(wait, slot.Far) // to give it back is a statement
	}
	return c.comeBack(msg, fault.Jitter(wait))
}

// perKey is how many events of a key of the consumer are handled at once; 0: as many as come.
func (c Config) perKey(consumer string) int { return cmp.Or(c.of(consumer).MaxPerKey, c.MaxPerKey) }

// limits reports whether the events of some consumer are limited.
func (c Config) limits() bool {
	for _, h := range c.Handlers {
		if h.MaxPerKey != 0 {
			return true
		}
	}
	return c.MaxPerKey != 0
}

func validatePerKey(field string, n int) error {
	if n < 0 || n > maxSlots {
		return fmt.Errorf("%s.MaxPerKey is %d: want 1 to %d, or 0 for no limit", field, n, maxSlots)
	}
	return nil
}
