package claim

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/pgtx"
)

const (
	// linger is how long a message waits, at most, for others to share a transaction with.
	linger = 2 * time.Millisecond
	// maxGroup keeps a transaction below the 64 subtransactions that a PostgreSQL backend can announce to others.
	maxGroup = 50
)

// gatherer puts the messages of one consumer that are in hand at the same time into groups. It never waits for a message
// that cannot come: once as many are there as were in hand together the last time, a group begins, and it begins at the
// latest when the linger has passed.
type gatherer struct {
	max    int
	linger time.Duration

	mu       sync.Mutex
	forming  *group
	running  int // groups
	inHand   int // their messages
	expected int // how many may come: the most that were in hand since a group began with fewer
}

// group is messages that share a transaction.
type group struct {
	members []*member     // in the order of their arrival
	begins  chan struct{} // closed when nobody can join any more
	ended   chan struct{} // closed when every member's outcome is known
}

// join adds the message to the group that is forming. The first one of a group has to see to it that it runs.
func (g *gatherer) join(m *member) (joined *group, first bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.forming == nil {
		g.forming, first = &group{begins: make(chan struct{}), ended: make(chan struct{})}, true
	}
	joined = g.forming
	joined.members = append(joined.members, m)
	g.expected = max(g.expected, min(g.inHand+len(joined.members), g.max))
	g.beginIf(len(joined.members) == g.max || g.complete())
	return joined, first
}

// complete reports whether everything has come that can, and nobody is at work of whom more may come.
func (g *gatherer) complete() bool {
	return g.running == 0 && len(g.forming.members) >= g.expected
}

func (g *gatherer) beginIf(due bool) {
	if !due {
		return
	}
	g.running++
	g.inHand += len(g.forming.members)
	g.expected = min(g.inHand, g.max)
	close(g.forming.begins)
	g.forming = nil
}

// await returns when the group begins.
func (g *gatherer) await(forming *group) {
	timer := time.NewTimer(g.linger)
	defer timer.Stop()
	select {
	case <-forming.begins:
	case <-timer.C:
		g.mu.Lock()
		defer g.mu.Unlock()
		g.beginIf(g.forming == forming)
	}
}

func (g *gatherer) end(ended *group) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	g.inHand -= len(ended.members)
	g.beginIf(g.forming != nil && g.complete())
	close(ended.ended)
}

// grouped claims the event together with others. A message whose group fails through no fault of its own is claimed alone.
func (c *Claim) grouped(ctx context.Context, key Key, fn func(ctx context.Context) error) attempt {
	if _, ok := pgtx.From(ctx); ok || c.modes.singly(key.Consumer) {
		return c.single(ctx, key, fn) // which refuses a transaction
	}
	m := newMember(context.WithoutCancel(ctx), key, fn) // its time begins with its handler
	defer close(m.settled)
	q, _ := c.modes.gatherers.LoadOrStore(key.Consumer, &gatherer{max: c.cfg.Group, linger: linger})
	g, first := q.(*gatherer).join(m)
	if first {
		q.(*gatherer).await(g)
		go func() { // all members wait for it
			defer q.(*gatherer).end(g)
			c.runGroup(g.members)
		}()
	}
	m.wait(g)
	if m.state == memberAgain {
		m.result = c.again(m)
	}
	return m.result
}

// again claims the event alone, after those that it must not overtake.
func (c *Claim) again(m *member) attempt {
	for _, before := range []*member{m.twin, m.ahead} {
		if before == nil {
			continue
		}
		<-before.settled
		if !before.result.settled() {
			return attempt{err: ErrContended}
		}
	}
	ctx, cancel := context.WithTimeout(m.ctx, c.cfg.timeout(m.key.Consumer))
	defer cancel()
	return c.single(ctx, m.key, m.fn)
}

// runGroup claims the members' events and runs their handlers, in one transaction.
func (c *Claim) runGroup(members []*member) {
	link(members)
	claimed, err := c.modes.group.do(members)
	if errors.Is(err, store.ErrStale) {
		c.modes.group.store.Forget(members[0].key.Consumer)
		claimed, err = c.modes.group.do(members)
	}
	conclude(members, claimed, err)
	c.tellLeaving(members)
}
