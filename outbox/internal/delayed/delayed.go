// Package delayed decides when a relay moves due delayed events into the outbox, and how many at once. It does no I/O, has no clock and
// starts no goroutine.
package delayed

import (
	"time"

	"github.com/millrace-go/millrace/outbox/internal/backoff"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

// Most is how many delayed events one statement moves at most.
const Most = 1000

// Mover decides when events are moved. After a failed move it asks for half as many. It is not safe for concurrent use.
type Mover struct {
	poll   time.Duration
	at     time.Time // no move before this time
	moving bool
	limit  int
	retry  backoff.Backoff
}

// New returns a Mover that looks for due events at least every poll.
func New(poll time.Duration) Mover { return Mover{poll: poll, limit: Most} }

// Next returns how many events to move now. It is 0 if none are to be moved before at. A zero time means that a move is under way.
func (m *Mover) Next(now time.Time) (limit int, at time.Time) {
	if m.moving {
		return 0, time.Time{}
	}
	if now.Before(m.at) {
		return 0, m.at
	}
	m.moving = true
	return m.limit, time.Time{}
}

// Done handles the answer to a move. After a failed one it returns how long the next one waits.
func (m *Mover) Done(in step.DelayedMoved, jitter func(time.Duration) time.Duration, now time.Time) (wait time.Duration) {
	m.moving = false
	if in.Err != nil {
		m.limit = max(1, m.limit/2)
		wait = m.retry.Failed(backoff.First, backoff.Most, jitter, now)
		m.at = now.Add(wait)
		return wait
	}
	m.retry.OK()
	full := in.Moved >= m.limit
	if in.Moved > 0 {
		m.limit = min(2*m.limit, Most)
	}
	switch {
	case full:
		m.at = now
	case in.Next > 0 && in.Next < m.poll:
		m.at = now.Add(in.Next)
	default:
		m.at = now.Add(m.poll)
	}
	return 0
}
