package relay

import (
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// saved is a published event whose row must be deleted.
type saved struct {
	shard *shard
	event *step.Event
}

// ghost is an event whose row was deleted while a running read may still return it.
type ghost struct {
	saved
	read, rescan bool
}

// acked records that the broker has an event.
func (c *Core) acked(s *shard, e *step.Event, now time.Time) {
	if len(c.unsaved) == 0 {
		c.since = now
	}
	c.unsaved = append(c.unsaved, saved{s, e})
	c.leases.GotOn(now)
}

// save deletes the rows of published events.
func (c *Core) save(now time.Time) (at time.Time) {
	if len(c.unsaved) == 0 || len(c.saving) > 0 {
		return time.Time{}
	}
	due := c.since.Add(saveDelay)
	if c.ending || c.waits || len(c.unsaved) >= fullSave {
		due = now
	}
	if c.saveRetry.Until.After(due) {
		due = c.saveRetry.Until
	}
	if due.After(now) {
		return due
	}
	n := min(len(c.unsaved), c.saveLimit)
	c.saving, c.unsaved = c.unsaved[:n:n], slices.Clone(c.unsaved[n:])
	rows := make([]step.ShardRow, n)
	for i, u := range c.saving {
		rows[i] = step.ShardRow{Shard: u.shard.Shard, Row: &u.event.Row}
	}
	c.do(step.Delete{Rows: rows})
	return time.Time{}
}

func (c *Core) deleted(in step.Deleted, now time.Time) {
	batch := c.saving
	c.saving = nil
	if in.Err != nil {
		c.unsaved = append(batch, c.unsaved...)
		c.saveLimit = max(1, len(batch)/2)
		c.failed("delete published events", 0, c.backOff(&c.saveRetry, now), in.Err)
		return
	}
	c.saveRetry.OK()
	c.saveLimit = min(2*c.saveLimit, maxSave)
	c.since = now
	for _, u := range batch {
		u.shard.unsaved--
		queueOf(u.event).unsaved--
		c.letGo(u)
	}
	for _, u := range batch {
		if s := c.shard(u.shard.Ref); s != nil && s.guard.Deaths() > 0 {
			if !s.retries() {
				s.guard.Deleted(now)
			}
			c.pass(s)
		}
	}
}

// letGo drops an event whose row is gone, unless a running read may still return it.
func (c *Core) letGo(u saved) {
	u.event.Gone = true
	if c.isNoted(u.shard, u.event.EventID) {
		c.noted = nil
	}
	if c.reading || len(c.rescans) > 0 {
		c.ghosts = append(c.ghosts, ghost{u, c.reading, len(c.rescans) > 0})
		return
	}
	u.shard.drop(u.event)
}

// exorcise drops the events that no running read can return.
func (c *Core) exorcise(read, rescan bool) {
	rest := c.ghosts[:0]
	for _, g := range c.ghosts {
		g.read, g.rescan = g.read && !read, g.rescan && !rescan
		if g.read || g.rescan {
			rest = append(rest, g)
			continue
		}
		g.shard.drop(g.event)
	}
	clear(c.ghosts[len(rest):])
	c.ghosts = rest
}
