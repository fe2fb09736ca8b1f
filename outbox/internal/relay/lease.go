package relay

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// A relay that has work and publishes nothing for stallAfter counts as struggling. A long LeaseTTL makes that time longer.
const stallAfter = 15 * time.Second

// renew renews the leases four times in their life.
func (c *Core) renew(now time.Time) (at time.Time) {
	if c.renewing {
		return time.Time{}
	}
	if now.Before(c.renewAt) {
		return c.renewAt
	}
	c.renewing = true
	c.renewAt = now.Add(c.cfg.LeaseTTL / 4)
	r := step.Renew{Hold: c.Held(), Struggling: c.rules.struggles(c, now), Topics: c.topicStates(now)}
	for n, until := range c.shunned {
		if !c.alone && until.until.After(now) {
			r.Shun = append(r.Shun, n)
		}
	}
	if c.ending {
		for n := range int16(c.count) {
			r.Shun = append(r.Shun, n)
		}
	}
	r.Left = len(r.Shun)
	for n, until := range c.releasing { // or this relay would take a lease that ends at once
		if until.After(now) && !slices.Contains(r.Shun, n) {
			r.Shun = append(r.Shun, n)
		}
	}
	slices.Sort(r.Shun)
	c.do(r)
	return time.Time{}
}

// struggles reports whether this relay gets nothing published although there is something to publish. Then its shards go to
// relays that do not struggle. After a while it tries again.
func (c *Core) struggles(now time.Time) bool {
	working := false
	for _, s := range c.order {
		working = working || s.working()
	}
	switch {
	case c.struggling:
		if now.After(c.resting.until) {
			c.struggling, c.progress = false, now
		}
	case !working:
		c.progress = now
	case now.Sub(c.progress) > max(stallAfter, 3*c.cfg.LeaseTTL):
		c.struggling = true
		c.resting.wait = min(max(2*c.resting.wait, time.Minute), 10*time.Minute)
		c.resting.until = now.Add(c.cfg.Jitter(c.resting.wait))
	}
	return c.struggling
}

// renewed makes the shards match the leases.
func (c *Core) renewed(in step.Renewed, now time.Time) {
	c.renewing = false
	deadline := in.Began.Add(c.cfg.LeaseTTL)
	if in.Err != nil {
		c.failed("renew the leases", 0, max(c.renewAt.Sub(now), 0), in.Err)
		for _, s := range slices.Clone(c.order) {
			if s.expired(now) { // others may have taken it
				c.end(s)
			}
		}
		return
	}
	c.count, c.alone = in.Shards, in.Fair >= in.Shards
	held := map[int16]step.Lease{}
	for _, l := range in.Held {
		held[l.Shard] = l
	}
	for _, s := range slices.Clone(c.order) {
		if _, ok := held[s.Shard]; ok {
			s.deadline = deadline
		} else {
			c.end(s)
		}
	}
	var fresh []step.Ref
	for _, l := range in.Held {
		if c.ending || c.shards[l.Shard] != nil || slices.Contains(in.Asked, l.Shard) {
			continue // the last: it was given back meanwhile
		}
		s := c.newShard(l, deadline)
		s.beCareful()
		c.shards[l.Shard] = s
		fresh = append(fresh, s.Ref)
	}
	c.reorder()
	for _, s := range c.rules.surplus(c, in.Fair) {
		s.stopping = now
	}
	if len(fresh) > 0 {
		c.do(step.LoadBlocked{Shards: fresh})
	}
}

// surplus chooses the shards that this relay has to give back, those that are idle first. It counts those that it is
// giving back already.
func (c *Core) surplus(fair int) []*shard {
	n := len(c.order) - fair
	var rest []*shard
	for _, s := range c.order {
		if s.stopping.IsZero() {
			rest = append(rest, s)
		} else {
			n--
		}
	}
	slices.SortStableFunc(rest, func(a, b *shard) int {
		return cmp.Or(cmp.Compare(len(a.held), len(b.held)), cmp.Compare(b.Shard, a.Shard))
	})
	return rest[:min(max(n, 0), len(rest))]
}

// end lets go of a shard whose lease is lost or given back.
func (c *Core) end(s *shard) {
	delete(c.shards, s.Shard)
	c.reorder()
	if slices.ContainsFunc(s.order, (*queue).busy) {
		c.ended[s.Ref] = s // as long as its publisher does not return
		for _, q := range s.order {
			for _, e := range q.ready {
				s.unload(e)
			}
			q.failed = nil
		}
	}
	for _, q := range s.order {
		q.endProbe() // its answer may never come
	}
	if c.noted == s && !slices.ContainsFunc(slices.Concat(c.saving, c.unsaved), func(u saved) bool { return c.isNoted(u.shard, u.event.EventID) }) {
		c.noted = nil
	}
	c.do(step.EndLease{Ref: s.Ref})
}

// watch gives a shard back when the publisher does not return. Another relay then sends its events.
func (c *Core) watch(s *shard, q *queue, now time.Time) {
	if now.Sub(q.since) < c.cfg.StuckAfter || s.shunned {
		return
	}
	s.shunned, s.stopping = true, now
	r := c.shunned[s.Shard]
	r.wait = min(max(2*r.wait, time.Minute), 10*time.Minute)
	r.until = now.Add(r.wait)
	c.shunned[s.Shard] = r
	c.report(step.Report{Kind: step.ReportStuck, Shard: s.Shard, Topic: q.topic.name, Count: len(q.sending) + len(q.retries), In: now.Sub(q.since)})
}

// giveBack ends the leases of shards that are to be given back and have nothing in flight any more, so that another relay
// need not wait for their expiry. One that still has after a lease's time is given back too.
func (c *Core) giveBack(now time.Time) {
	var done step.Release
	for _, s := range slices.Clone(c.order) {
		if !s.stopping.IsZero() && (s.idle() || s.shunned || now.Sub(s.stopping) > max(c.cfg.LeaseTTL, stallAfter)) {
			c.end(s)
			done.Shards, done.Terms = append(done.Shards, s.Shard), append(done.Terms, s.term)
			c.releasing[s.Shard] = now.Add(2 * c.cfg.LeaseTTL)
		}
	}
	if len(done.Shards) > 0 {
		c.do(done)
	}
}

// blockedLoaded learns which keys of new shards have failed events, and which topics are paused, before their first read.
func (c *Core) blockedLoaded(in step.BlockedLoaded, now time.Time) {
	if in.Err != nil {
		c.failed("load the blocked keys of shards: giving them back", 0, 0, in.Err)
	} else {
		c.control(in.Controls)
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
			s.loaded, s.due = true, len(in.Keys[r.Shard]) > 0
			c.pollAt = now // it finds events without key, and what was set meanwhile
		}
	}
}
