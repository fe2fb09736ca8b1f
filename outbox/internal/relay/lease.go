package relay

import (
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/lease"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

// renew renews the leases.
func (c *Core) renew(now time.Time) (at time.Time) {
	due, at := c.leases.Due(now)
	if due {
		c.do(c.leases.Renew(c.Held(), c.rules.struggles(c, now), c.ending, c.topicStates(now), now))
		return time.Time{}
	}
	return at
}

// struggles reports whether this relay publishes nothing although there is something to publish.
func (c *Core) struggles(now time.Time) bool {
	blind := c.readRetry.Wait > 0 || c.reading && now.Sub(c.readSince) > slowRead // there may be something to publish
	return c.leases.Struggles(blind || slices.ContainsFunc(c.order, (*shard).working), now)
}

// renewed makes the shards match the leases.
func (c *Core) renewed(in step.Renewed, now time.Time) {
	deadline, again := c.leases.Renewed(in, now)
	if in.Err != nil {
		c.failed("renew the leases", 0, again, in.Err)
		for _, s := range slices.Clone(c.order) {
			if s.expired(now) { // another relay may have taken it
				c.end(s)
			}
		}
		return
	}
	held := map[int16]step.Lease{}
	for _, l := range in.Held {
		held[l.Shard] = l
	}
	for _, s := range slices.Clone(c.order) {
		// A renewal whose answer was lost may have taken the shard again: then the database has another term.
		if l, ok := held[s.Shard]; ok && l.Term == s.Term {
			s.deadline = deadline
		} else {
			c.end(s)
		}
	}
	var fresh []step.Ref
	for _, l := range in.Held {
		if c.ending || c.shards[l.Shard] != nil || slices.Contains(in.Asked, l.Shard) {
			continue // a shard in Asked was given back during the renewal
		}
		s := c.newShard(l, deadline)
		if s.guard.Careful() {
			c.report(step.Report{Kind: step.ReportCareful, Shard: s.Shard, Count: s.guard.Deaths()})
		}
		c.shards[l.Shard] = s
		fresh = append(fresh, s.Ref)
	}
	c.reorder()
	all := make([]lease.Held, len(c.order))
	for i, s := range c.order {
		all[i] = lease.Held{Shard: s.Shard, Events: len(s.held), Leaving: !s.stopping.IsZero()}
	}
	for _, n := range c.rules.surplus(in.Fair, all) {
		c.shards[n].stopping = now
	}
	if len(fresh) > 0 {
		c.do(step.LoadBlocked{Shards: fresh})
	}
}

// end drops a shard whose lease was lost or given back.
func (c *Core) end(s *shard) {
	delete(c.shards, s.Shard)
	c.reorder()
	if slices.ContainsFunc(s.order, (*queue).busy) {
		c.ended[s.Ref] = s // until its publisher returns
		for _, q := range s.order {
			for _, e := range q.ready {
				s.unload(e)
			}
			q.failed = nil
		}
	}
	for _, q := range s.order {
		q.endProbe() // the probe may never be answered
	}
	if c.noted == s && !slices.ContainsFunc(slices.Concat(c.saving, c.unsaved), func(u saved) bool { return c.isNoted(u.shard, u.event.EventID) }) {
		c.noted = nil
	}
	c.do(step.EndLease{Ref: s.Ref})
}

// watch gives a shard back if the publisher does not return. Another relay then sends its events.
func (c *Core) watch(s *shard, q *queue, now time.Time) {
	if now.Sub(q.since) < c.cfg.StuckAfter || s.shunned {
		return
	}
	s.shunned, s.stopping = true, now
	c.leases.Shun(s.Shard, now)
	c.report(step.Report{Kind: step.ReportStuck, Shard: s.Shard, Topic: q.topic.Name, Count: len(q.sending) + len(q.retries), In: now.Sub(q.since)})
}

// giveBack ends the leases of shards that should be given back and have nothing in flight, so that another relay need not wait until they
// expire. If a shard still has events in flight after a lease's time, it is given back too.
func (c *Core) giveBack(now time.Time) {
	var done step.Release
	for _, s := range slices.Clone(c.order) {
		if !s.stopping.IsZero() && (s.idle() || s.shunned || c.leases.Overdue(s.stopping, now)) {
			c.end(s)
			done.Shards, done.Terms = append(done.Shards, s.Shard), append(done.Terms, s.Term)
			c.leases.Release(s.Shard, now)
		}
	}
	if len(done.Shards) > 0 {
		c.do(done)
	}
}

// blockedLoaded records, before the first read of new shards, which of their keys have failed events and which topics are paused.
func (c *Core) blockedLoaded(in step.BlockedLoaded, now time.Time) {
	if in.Err != nil {
		c.failed("load the blocked keys of shards: giving them back", 0, 0, in.Err)
	} else {
		c.control(in.Controls, in.Shards[len(in.Shards)-1].Lease)
	}
	for _, r := range in.Shards {
		s := c.shard(r)
		switch {
		case s == nil:
		case in.Err != nil:
			s.stopping = now
		default:
			for _, k := range in.Keys[r.Shard] {
				s.blocked[k] = struct{}{}
			}
			// The event that ended a relay may be a failed one without a key.
			s.loaded, s.due = true, len(in.Keys[r.Shard]) > 0 || s.guard.Deaths() > 0
			c.pollAt = now // the poll finds events without a key, and settings that changed meanwhile
		}
	}
}
