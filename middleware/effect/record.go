package effect

import (
	"time"

	"github.com/google/uuid"
)

// States of a record.
const (
	running = "running"  // a call may be running; in doubt when its time is up
	pending = "pending"  // the provider has accepted it and reports the outcome later; in doubt when its time is up
	doubt   = "doubt"    // a call ended with an unknown outcome
	done    = "done"     // it happened, and is never called again
	notDone = "not_done" // it did not happen, and may be called
)

// record is one effect's row. The methods below are its only transitions. They run under the effect's lock, with the server's time.
type record struct {
	CreatedAt     time.Time // selects the partition, one per day
	State         string
	Token         uuid.UUID // of the last call
	Calls         int
	FirstCalledAt time.Time
	CalledAt      time.Time
	Until         time.Time
	Response      []byte
	Reason        string
	SettledBy     string
	SettledAt     *time.Time
	Conflicts     int
	EventID       string // the event whose handler called first
}

// verdict is the next step for an effect that an event asks for.
type verdict int

const (
	call   verdict = iota // the intent is recorded: call now
	replay                // done before
	wait                  // another call may be running, or the provider may still work on it
	ask                   // in doubt: ask the provider
	stuck                 // in doubt, and nobody can be asked
)

func (r *record) inDoubt(now time.Time) bool {
	return r.State == doubt || (r.State == running || r.State == pending) && !now.Before(r.Until)
}

// begin decides. For a call it also returns the record of the intent, marked with the token.
func begin(r *record, now time.Time, token uuid.UUID, o options, settle time.Duration) (verdict, *record) {
	switch {
	case r == nil:
		return call, (&record{FirstCalledAt: now}).calling(now, token, o.timeout)
	case r.State == done:
		return replay, nil
	case r.State == notDone, r.State == running && r.Token == token: // or the answer to our own commit was lost
		return call, r.calling(now, token, o.timeout)
	case !r.inDoubt(now):
		return wait, nil
	case o.honours(r.FirstCalledAt, now):
		return call, r.calling(now, token, o.timeout)
	case o.reconcile == nil:
		return stuck, nil
	case now.Before(r.Until.Add(settle)):
		return wait, nil
	}
	return ask, nil
}

// calling returns the record of an intent. It belongs to the current day, so its day is not dropped while it is in doubt.
func (r *record) calling(now time.Time, token uuid.UUID, timeout time.Duration) *record {
	next := *r
	if next.Token != token {
		next.Calls++
	}
	next.CreatedAt, next.State, next.Token = now, running, token
	next.CalledAt, next.Until = now, now.Add(timeout)
	next.Response, next.Reason, next.SettledBy, next.SettledAt = nil, "", "", nil
	return &next
}

// finish records how the call with the token ended: done, notDone, pending (for the time within) or doubt. A success is recorded in
// any state. Another outcome counts only if this is still the last call and nobody has settled the effect. A success after another
// call has begun is a conflict, because the effect probably happened twice, unless the provider makes one effect of both calls.
// notDone tells only of this call: if it began while an earlier one was in doubt, the effect is in doubt again. finish returns nil if
// nothing changes.
func (r *record) finish(token uuid.UUID, state string, now time.Time, response []byte, reason string, o options) (next *record, conflict bool) {
	changed := *r
	switch {
	case state == done:
		conflict = r.Token != token && !o.idempotent
		if conflict {
			changed.Conflicts++
		}
		if r.State != done {
			changed.settle(done, response, "call", now)
		} else if r.Response == nil {
			changed.Response = response
		}
	case r.Token != token || r.State != running:
		return nil, false
	case state == notDone && !o.doubted:
		changed.settle(notDone, nil, "call", now)
		changed.Reason = reason
	case state == pending:
		changed.State, changed.Until, changed.Reason = pending, now.Add(o.within), reason
	default:
		changed.State, changed.Until, changed.Reason = doubt, now, reason
	}
	return &changed, conflict
}

// settle sets the final outcome.
func (r *record) settle(state string, response []byte, by string, now time.Time) {
	r.State, r.Response, r.SettledBy, r.SettledAt, r.Reason = state, response, by, &now, ""
}
