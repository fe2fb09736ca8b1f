package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/transport"
)

// An event may kill the process that sends it: a publisher that crashes or runs out of memory over it. Its successor would
// die of it too, and so on. After two takeovers of a shard that were not given back and between which nothing was sent,
// its events are sent one by one, in the whole relay one at a time, each noted durably before; one that was noted at
// three deaths becomes dead. What other shards send meanwhile is not suspected.

const (
	maxStrikes = 2
	maxDeaths  = 3
)

// reasonKills is why an event that ended its relays is dead.
const reasonKills = "the relay ended every time it sent this event"

// cautious reports whether an event is being sent alone, or is not deleted yet: a successor must not suspect what went well.
func (e *engine) cautious() bool { return e.careful != nil || e.carefulRetry }

// sendNoted sends rows of one topic. A careful one is noted before, and the note is struck out when the relay survives it
// but the broker did not take the event: in an outage nobody is to be suspected.
func (r *Relay) sendNoted(s *shard, topic string, rows []*row, careful bool) []error {
	if !careful {
		return r.send(s.ctx, topic, rows)
	}
	ctx, cancel := context.WithTimeout(s.ctx, exchangeTimeout)
	defer cancel()
	note := []argument{smallint(s.id), id(r.id), text(rows[0].eventID)}
	err := roundTrip(ctx, r.pool, begin, statement{sql: `select set_config('synchronous_commit', 'on', true)`},
		statement{sql: r.sql.suspectNote, args: note}, commit)
	if err != nil { // not sent
		return repeat(fmt.Errorf("%w: note the event before it is sent: %w", transport.ErrUnavailable, err), len(rows))
	}
	results := r.send(s.ctx, topic, rows)
	if results[0] != nil {
		err := roundTrip(ctx, r.pool, statement{sql: r.sql.suspectSurvived, args: note})
		if err != nil && s.ctx.Err() == nil {
			r.cfg.Logger.WarnContext(ctx, "strike out the note of an event", "shard", s.id, "error", err)
		}
	}
	return results
}

// parkSuspect makes the event that is about to be sent dead if it was noted at too many deaths.
func (e *engine) parkSuspect(s *shard, l *lane, batch []*event) bool {
	v := batch[0]
	if v.eventID != s.suspect || s.attempts < maxDeaths {
		return false
	}
	e.relay.cfg.Logger.Error("an event is dead because relays ended while they sent it", "shard", s.id, "topic", l.topic,
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
	s.parkKey(k, parking{event: v, state: stateDead, reason: reasonKills})
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
