package claim

import (
	"cmp"
	"context"
	"errors"
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

// At most MaxPerKey events of a key are handled at once. A slot is an advisory lock that the handler's transaction holds, so it becomes
// free however the transaction ends. Package internal/slot decides, without the database, which events of this process may try for one.

// slots are the waiting and running events of this process. They are safe for concurrent use.
type slots struct {
	mu sync.Mutex
	of slot.Slots
}

// limited is an event whose key has a limit. nil is an event without a limit.
type limited struct {
	claim   *Claim
	of      slot.Key
	event   string
	slots   int
	refused bool
}

// busyError means that MaxPerKey events of the key are being handled already.
type busyError struct{}

func (*busyError) Error() string { return "as many events of this key are handled as may be at once" }

// limit returns nil if the event's key has no limit. An error means that Config.LimitKey panicked.
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

// enter reports whether the event may try for a slot, and if not, how long it should wait. If it may, the caller must call leave.
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

// take takes a slot until the end of the transaction that ctx carries. It returns a busyError if other processes hold all slots.
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
		wait = max(wait, slot.Far) // it costs a statement to return the event to the table
	}
	return c.turnedAway(ctx, key, msg, errors.New("as many events of its key were handled as MaxPerKey allows"), fault.Jitter(wait))
}

// perKey is how many events of a key the consumer handles at once; 0: no limit.
func (c Config) perKey(consumer string) int { return cmp.Or(c.of(consumer).MaxPerKey, c.MaxPerKey) }

// limits reports whether any consumer has a limit.
func (c Config) limits() bool {
	for _, h := range c.Handlers {
		if h.MaxPerKey != 0 {
			return true
		}
	}
	return c.MaxPerKey != 0
}

func validatePerKey(field string, n int) error {
	if n < 0 || n > slot.Most {
		return fmt.Errorf("%s.MaxPerKey is %d: want 1 to %d, or 0 for no limit", field, n, slot.Most)
	}
	return nil
}
