package outbox

import (
	"context"
	"time"
)

// An event may kill the process that sends it: a publisher that crashes or runs out of memory over it. Its successor would
// die of it too, and so on. After two takeovers of a shard that were not given back and between which nothing was sent,
// its events are sent one by one, in the whole relay one at a time, each noted durably before; one that was noted at
// three deaths is parked. What other shards send meanwhile is not suspected.

const (
	maxStrikes = 2
	maxDeaths  = 3
)

// note notes, before they are sent, events that are sent carefully.
func (r *Relay) note(s *shard, rows []*row, careful bool) error {
	if !careful {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, exchangeTimeout)
	defer cancel()
	return roundTrip(ctx, r.pool, begin,
		statement{sql: `select set_config('synchronous_commit', 'on', true)`},
		statement{sql: r.sql.suspectNote, args: []argument{smallint(s.id), id(r.id), text(rows[0].eventID)}}, commit)
}

// parkSuspect parks the event that is about to be sent if it was noted at too many deaths.
func (e *engine) parkSuspect(s *shard, l *lane, batch []*event) bool {
	v := batch[0]
	if v.eventID != s.suspect || s.attempts < maxDeaths {
		return false
	}
	e.relay.cfg.Logger.Error("an event is parked because relays ended while they sent it", "shard", s.id, "topic", l.topic,
		"event_id", v.eventID, "deaths", s.attempts)
	l.sending = nil
	s.unsaved--
	k := v.keyed
	if k == nil {
		k = &keyed{lane: l, pending: 1}
		v.keyed = k
	}
	k.pending--
	v.attempts = s.attempts
	s.parkKey(k, parking{event: v, state: stateParked, reason: "the relay ended every time it sent this event"})
	s.divert(l)
	s.suspect, s.attempts = "", 0
	return true
}

// progress notes that the shard gets on.
func (e *engine) progress(s *shard) {
	s.strikes, s.careful, s.suspect, s.attempts = 0, 0, "", 0
	e.do(func() func(time.Time) {
		ctx, cancel := context.WithTimeout(e.hard, exchangeTimeout)
		defer cancel()
		err := roundTrip(ctx, e.relay.pool, statement{sql: e.relay.sql.suspectClear, args: []argument{smallint(s.id), id(e.relay.id)}})
		return func(time.Time) {
			if err != nil && e.hard.Err() == nil {
				e.relay.cfg.Logger.Warn("note the progress of a shard", "shard", s.id, "error", err)
			}
		}
	})
}
