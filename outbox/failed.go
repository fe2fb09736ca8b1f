package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/store"
)

// What could not be published waits in a table of its own, with its reason; later events of its key wait behind it there,
// in order. Only the holder of the shard's lease moves events in and out; operators set flags.

const (
	// maxMove is how many events are moved in one transaction.
	maxMove = 1000
	// maxFailedBackoff bounds the time between two attempts of an event in the side table.
	maxFailedBackoff = time.Minute
)

// failedBackoff is how long an event waits after so many failures of its own.
func failedBackoff(attempts int) time.Duration {
	return min(firstBackoff<<min(attempts-1, 20), maxFailedBackoff)
}

// loadParked learns which keys of new shards have events in the side table, before their first read.
func (e *engine) loadParked(shards []*shard) {
	ids := make([]int16, len(shards))
	for i, s := range shards {
		ids[i] = s.id
	}
	e.do(func() func(time.Time) {
		ctx, cancel := context.WithTimeout(e.hard, exchangeTimeout)
		defer cancel()
		keys := map[int16][]string{}
		err := roundTrip(ctx, e.relay.pool, begin, statement{
			sql: e.relay.sql.failedKeys, args: []argument{int2s(ids)},
			row: func(v [][]byte) error {
				keys[asInt2(v[0])] = append(keys[asInt2(v[0])], string(v[1]))
				return nil
			},
		}, commit)
		return func(time.Time) {
			if err != nil {
				if e.hard.Err() == nil {
					e.relay.cfg.Logger.Warn("load the failed keys of the outbox's shards: letting go of them", "shards", ids, "error", err)
				}
				for _, s := range shards {
					if e.shards[s.id] == s {
						s.stopping = true // given back, and taken again
					}
				}
				return
			}
			for _, s := range shards {
				for _, k := range keys[s.id] {
					s.parked[k] = struct{}{}
				}
				s.loaded, s.retry = true, true
			}
		}
	})
}

// move brings events to the side table, or works on what is there: one of the two at a time, so that a newcomer of a key
// cannot slip past an event that is being moved.
func (e *engine) move(s *shard, now time.Time) {
	if s.moving || !s.loaded || s.moveAfter.After(now) {
		return
	}
	switch {
	case len(s.park) > 0:
		e.moveOut(s)
	case s.retry && !e.ending && !s.stopping:
		s.retry = !e.retryFailed(s)
	}
}

func (e *engine) moveOut(s *shard) {
	batch := s.park[:min(len(s.park), maxMove)]
	s.park = append([]parking(nil), s.park[len(batch):]...)
	s.moving = true
	e.do(func() func(time.Time) {
		leased, moved, err := e.relay.moveOut(e.hard, s.id, batch)
		return func(now time.Time) {
			s.moving = false
			if err != nil {
				s.park = append(batch, s.park...)
				s.moveWait = backoff(s.moveWait)
				s.moveAfter = now.Add(s.moveWait)
				if e.hard.Err() == nil {
					e.relay.cfg.Logger.Warn("move failed events to the side table", "shard", s.id, "retry_in", s.moveWait, "error", err)
				}
				return
			}
			s.moveWait = 0
			for _, p := range batch {
				s.release(p.event)
				e.letGo(acked{s, p.event})
			}
			if !leased {
				s.stopping = true // the next renewal tells
				return
			}
			for _, p := range batch {
				if p.retryIn > 0 && now.Add(p.retryIn).Before(e.pollAt) {
					e.pollAt = now.Add(p.retryIn)
				}
			}
			e.relay.observer.moved(batch[:moved])
		}
	})
}

// moveOut moves the events in one transaction, and reports whether the lease was still ours.
func (r *Relay) moveOut(ctx context.Context, shard int16, batch []parking) (leased bool, moved int, err error) {
	n := len(batch)
	seqs, ids, hashes, states := make([]int64, n), make([]string, n), make([]int64, n), make([]string, n)
	attempts, reasons, retry := make([]int32, n), make([]string, n), make([]int32, n)
	for i, p := range batch {
		seqs[i], ids[i], hashes[i], states[i] = p.seq, p.eventID, store.Hash(p.key, p.eventID), p.state
		attempts[i], reasons[i], retry[i] = int32(p.attempts), printable(p.reason), int32(p.retryIn.Milliseconds())
	}
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	err = roundTrip(ctx, r.pool, begin, statement{
		sql: r.sql.failedMove,
		args: []argument{
			smallint(shard), id(r.id), int8s(seqs), texts(ids), int8s(hashes), texts(states), int4s(attempts), texts(reasons), int4s(retry),
		},
		row: func(v [][]byte) error {
			leased, moved = asInt8(v[0]) > 0, int(asInt8(v[1]))
			return nil
		},
	}, commit)
	return leased, moved, err
}

// maxReason bounds what is kept of an error.
const maxReason = 2000

// printable makes text of an error that a text column takes.
func printable(reason string) string {
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	clean := make([]rune, 0, len(reason))
	for _, c := range reason { // an invalid byte becomes U+FFFD
		if c != 0 {
			clean = append(clean, c)
		}
	}
	return string(clean)
}

// maxDue is how many delayed events are moved at once.
const maxDue = 1000

// lookAround moves delayed events that are due, and returns the shards in which something of the side table is to be done
// and the time until the next delayed event is due, 0 when nothing waits.
func (r *Relay) lookAround(ctx context.Context, held []int16) (due []int16, next time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	err = roundTrip(ctx, r.pool, begin, statement{
		sql: r.sql.failedDue, args: []argument{int2s(held)},
		row: func(v [][]byte) error {
			due = append(due, asInt2(v[0]))
			return nil
		},
	}, commit)
	if err != nil {
		return nil, 0, fmt.Errorf("look for failed events that are due: %w", err)
	}
	moved, hashes, next, err := moveDue(ctx, r.pool, r.sql.delayedMove, maxDue)
	if err == nil && moved > 0 {
		r.wakes.add(hashes)
		_, err = r.pool.Exec(ctx, `select pg_notify($1::text, $2::text)`, store.Channel(r.cfg.Schema), notice(hashes, false)) // for the other relays
	}
	return due, next, err
}
