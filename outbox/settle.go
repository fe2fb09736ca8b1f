package outbox

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/millrace-go/millrace/transport"
)

const (
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 5 * time.Second
	// maxLaneBackoff is shorter: the next batch is of other keys, of which the broker may take some.
	maxLaneBackoff = time.Second
)

func backoff(last time.Duration) time.Duration {
	return min(max(2*last, firstBackoff), maxBackoff)
}

// parking is an event on its way to the side table.
type parking struct {
	*event
	state   string // stateRetrying, stateBlocked, stateDead
	reason  string
	retryIn time.Duration
}

const (
	stateRetrying  = "retrying"
	stateBlocked   = "blocked"
	stateDead      = "dead"
	stateDiscarded = "discarded"
)

// isOutage reports whether an error says that the broker is out of reach, which is no fault of the event.
func isOutage(err error) bool {
	var network net.Error
	var errno syscall.Errno
	return errors.Is(err, transport.ErrUnavailable) || errors.Is(err, transport.ErrClosed) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.As(err, &network) || errors.As(err, &errno)
}

// isRejected reports whether an error says that the event itself can never be sent.
func isRejected(err error) bool {
	return errors.Is(err, transport.ErrRejected) || errors.Is(err, transport.ErrLimit)
}

// isOwnFault reports whether an error counts against the event, which had failed before at failedAt (zero: never), the
// broker having last taken an event of its topic at lastSuccess: an error of unknown meaning is the event's own only when
// the broker took others between two failures of it. Otherwise it may be an outage, which counts no attempt and moves
// nothing.
func isOwnFault(err error, failedAt, lastSuccess time.Time) bool {
	if isOutage(err) || errors.Is(err, transport.ErrNotSent) {
		return false
	}
	return isRejected(err) || !failedAt.IsZero() && lastSuccess.After(failedAt)
}

// stateAfter is the state of an event in the side table after so many failures of its own.
func stateAfter(err error, attempts, maxAttempts int) string {
	if isRejected(err) || attempts >= maxAttempts {
		return stateDead
	}
	return stateRetrying
}

// settle sorts out what became of a lane's batch. It returns what was acknowledged. lastSuccess is when the broker last
// took an event of the topic, this batch's included.
func (s *shard) settle(l *lane, results []error, lastSuccess, now time.Time, maxAttempts int) (acked []*event, report failures) {
	batch := l.sending
	l.sending = nil
	acked = make([]*event, 0, len(batch))
	own := false
	for i, e := range batch {
		err := results[i]
		if err == nil {
			e.leaving = true
			acked = append(acked, e)
			s.release(e)
			s.settleKey(e)
			continue
		}
		s.unsaved--
		if e.keyed == nil {
			e.keyed = &keyed{lane: l, pending: 1}
		}
		k := e.keyed
		k.pending--
		if k.name != "" {
			if _, ok := s.parked[k.name]; ok { // an earlier one of the batch is on its way to the side table
				s.queue(e)
				continue
			}
		}
		if k.failing { // it follows the one that failed
			k.hold(e)
			continue
		}
		report.add(e, err)
		counts := isOwnFault(err, e.failedAt, lastSuccess)
		e.failedAt = now
		if counts {
			own = true
			e.attempts++
			s.parkKey(k, parking{event: e, state: stateAfter(err, e.attempts, maxAttempts), reason: err.Error(), retryIn: failedBackoff(e.attempts)})
			continue
		}
		k.hold(e)
		if s.bytes > batchBytes/2 {
			s.unload(e)
		}
		k.failing = true
		k.wait = backoff(k.wait)
		k.until = now.Add(k.wait)
		s.failing[k] = struct{}{}
	}
	switch {
	case len(acked) > 0:
		if l.wait > 0 { // it is over
			for k := range s.failing {
				if k.lane == l {
					k.until = now
				}
			}
		}
		l.wait, l.until = 0, time.Time{}
	case !own && len(batch) > 0:
		l.wait = min(backoff(l.wait), maxLaneBackoff)
		l.until = now.Add(l.wait)
	}
	if len(acked) < len(batch) {
		s.divert(l)
	}
	return acked, report
}

// divert takes out of the lane what has to wait for an earlier event of its key.
func (s *shard) divert(l *lane) {
	l.ready = slices.DeleteFunc(slices.Clone(l.ready), func(e *event) bool {
		k := e.keyed
		if k == nil || k.name == "" {
			return false
		}
		if _, ok := s.parked[k.name]; ok {
			k.pending--
			s.queue(e)
			return true
		}
		if k.failing {
			k.pending--
			k.hold(e)
		}
		return k.failing
	})
	// What waited for the lane was queued before the rest of the lane's own.
	slices.SortStableFunc(s.park, func(a, b parking) int { return cmp.Compare(a.arrival, b.arrival) })
}

// parkKey sends an event to the side table, and what is held of its key behind it.
func (s *shard) parkKey(k *keyed, p parking) {
	s.unload(p.event)
	p.leaving = true
	s.park = append(s.park, p)
	if k.name == "" {
		return
	}
	s.parked[k.name] = struct{}{}
	for _, e := range k.waiting {
		s.queue(e)
	}
	k.waiting = nil
	k.failing = false
	delete(s.failing, k)
	delete(s.keys, k.name)
}

// queue sends an event to the side table because an earlier one of its key is there.
func (s *shard) queue(e *event) {
	s.unload(e)
	e.leaving = true
	s.park = append(s.park, parking{event: e, state: stateBlocked})
}

// free makes events of the key ordinary again, because the side table has none any more.
func (s *shard) free(key string) {
	if _, ok := s.parked[key]; !ok {
		return
	}
	delete(s.parked, key)
	var rest []parking
	for _, p := range s.park {
		if p.key == key {
			p.keyed, p.leaving = nil, false
			s.arrive(p.event)
			continue
		}
		rest = append(rest, p)
	}
	s.park = rest
}

// failures is what failed in one batch: in an outage that is every event, and one line tells it.
type failures struct {
	events int
	first  *event
	err    error
}

func (f *failures) add(e *event, err error) {
	if f.events++; f.first == nil {
		f.first, f.err = e, err
	}
}
