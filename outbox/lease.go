package outbox

import (
	"context"
	"slices"
	"time"
)

// lease is a shard that this relay may work on.
type lease struct {
	shard    int16
	strikes  int    // unclean takeovers since events were last deleted
	suspect  string // a relay died while it sent this event alone
	attempts int    // so often
}

// leases is what the relay holds after a renewal.
type leases struct {
	asked []int16 // what it held before
	held  []lease
	fair  int // how many it should hold
	total int // how many there are
}

// keepLeases keeps this relay's shards leased until ctx ends, at intervals of its own, whatever the engine does, and tells
// the engine what it holds.
func (r *Relay) keepLeases(ctx context.Context) {
	var until time.Time // by our own clock, from before the server's: earlier than the lease in the database
	tell := func(l leases) {
		select {
		case r.leases <- l:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		started := time.Now()
		l, err := r.takeLeases(ctx)
		switch {
		case err == nil:
			until = started.Add(r.cfg.LeaseTTL)
			tell(l)
		case ctx.Err() != nil:
			return
		default:
			r.cfg.Logger.WarnContext(ctx, "renew the leases of the outbox's shards", "error", err)
			if time.Now().After(until) {
				tell(leases{}) // others may have taken them
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(r.cfg.LeaseTTL / 4):
		}
	}
}

func (r *Relay) takeLeases(ctx context.Context) (l leases, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.LeaseTTL/4)
	defer cancel()
	ttl := int(r.cfg.LeaseTTL.Milliseconds())
	l.asked = r.holding()
	err = roundTrip(ctx, r.pool, begin,
		statement{sql: r.sql.seen, args: []argument{id(r.id), integer(ttl), text(r.name)}},
		statement{sql: r.sql.take, args: []argument{id(r.id), integer(ttl), int2s(l.asked)}, row: func(v [][]byte) error {
			l.fair, l.total = asInt4(v[0]), asInt4(v[1])
			if v[2] != nil {
				l.held = append(l.held, lease{asInt2(v[2]), int(asInt2(v[3])), string(v[4]), int(asInt2(v[5]))})
			}
			return nil
		}}, commit)
	return l, err
}

// holding returns the shards that the engine has, also those that it is about to give back.
func (r *Relay) holding() []int16 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.shards)
}

// apply makes the engine's shards match the leases.
func (e *engine) apply(l leases) {
	if l.total > 0 {
		e.relay.shardCount.Store(int32(l.total))
	}
	has := func(id int16) bool { return slices.ContainsFunc(l.held, func(h lease) bool { return h.shard == id }) }
	for id, s := range e.shards {
		if !has(id) {
			e.remove(s)
		}
	}
	var fresh []*shard
	for _, h := range l.held {
		if e.ending || e.shards[h.shard] != nil || slices.Contains(l.asked, h.shard) {
			continue // the last: it was given back meanwhile
		}
		s := newShard(e.hard, h.shard)
		s.memory.blind = e.relay.blind
		s.strikes, s.suspect, s.attempts = h.strikes, h.suspect, h.attempts
		if s.strikes >= maxStrikes {
			s.careful = e.relay.cfg.MaxUnsaved
			e.relay.cfg.Logger.Warn("relays ended while they worked on this shard: sending its next events one by one",
				"shard", s.id, "takeovers", s.strikes, "suspect", s.suspect, "attempts", s.attempts)
		}
		e.shards[s.id] = s
		fresh = append(fresh, s)
	}
	surplus := len(l.held) - l.fair
	for _, s := range e.shards {
		if surplus <= 0 {
			break
		}
		surplus--
		if !s.stopping {
			s.stopping = true
		}
	}
	e.tellHolding()
	if len(fresh) > 0 {
		e.loadParked(fresh)
	}
	e.giveBack()
}

func (e *engine) tellHolding() {
	e.relay.mu.Lock()
	defer e.relay.mu.Unlock()
	e.relay.shards = e.held()
}

// remove lets go of a shard whose lease is lost, or was given back.
func (e *engine) remove(s *shard) {
	s.cancel()
	delete(e.shards, s.id)
}

// giveBack ends the leases of shards beyond the fair share that have nothing in flight any more, so that another relay
// need not wait for their expiry.
func (e *engine) giveBack() {
	var done []int16
	for _, s := range e.shards {
		if s.stopping && s.idle() {
			e.remove(s)
			done = append(done, s.id)
		}
	}
	if len(done) == 0 {
		return
	}
	e.tellHolding()
	e.do(func() func(time.Time) {
		ctx, cancel := context.WithTimeout(e.hard, e.relay.cfg.LeaseTTL)
		defer cancel()
		err := roundTrip(ctx, e.relay.pool, statement{sql: e.relay.sql.release, args: []argument{id(e.relay.id), int2s(done)}})
		return func(time.Time) {
			if err != nil && e.hard.Err() == nil {
				e.relay.cfg.Logger.Warn("give shards of the outbox back", "shards", done, "error", err)
			}
		}
	})
}

// leave gives the remaining shards back and takes the relay off the list, so that others take over at once.
func (r *Relay) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.LeaseTTL)
	defer cancel()
	all := make([]int16, r.shardCount.Load()) // also what a last renewal took
	for i := range all {
		all[i] = int16(i)
	}
	err := roundTrip(ctx, r.pool, begin,
		statement{sql: r.sql.release, args: []argument{id(r.id), int2s(all)}},
		statement{sql: r.sql.gone, args: []argument{id(r.id)}}, commit)
	if err != nil {
		r.cfg.Logger.WarnContext(ctx, "give the shards of the outbox back", "error", err)
	}
}
