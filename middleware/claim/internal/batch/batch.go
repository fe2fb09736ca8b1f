// Package batch claims several events of a consumer in one transaction, and runs their handlers there one after the other, each in
// its own savepoint.
package batch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/pgtx"
)

const (
	// linger is how long a message waits, at most, for others to share a transaction with.
	linger = 2 * time.Millisecond
	// Most keeps a transaction below the 64 subtransactions that a PostgreSQL backend can announce to others.
	Most = 50
)

// Result is what became of an event.
type Result struct {
	Ran bool  // the handler was called: what it returned is its own, even ErrCompleted of another claim
	Err error // nil: the claim is completed
}

// Settled reports whether the event's record is there: it was completed now or before.
func (r Result) Settled() bool {
	return r.Ran && r.Err == nil || !r.Ran && errors.Is(r.Err, store.ErrCompleted)
}

// Config configures Batches. All of it is required.
type Config struct {
	Store *store.Postgres
	Max   int  // how many events may share a transaction
	Async bool // the caller sees to it that commits reach the disk

	Timeout func(consumer string) time.Duration // of each handler
	Logger  *slog.Logger

	// Alone claims an event in a transaction of its own.
	Alone func(ctx context.Context, key store.Key, fn func(ctx context.Context) error) Result
}

// Batches are the groups of all consumers. They are safe for concurrent use.
type Batches struct {
	cfg       Config
	store     *groupStore
	gatherers sync.Map // consumer → *gatherer
	leaving   sync.Map // consumer → *leaving
}

// New returns Batches that are empty.
func New(cfg Config) *Batches { return &Batches{cfg: cfg, store: newGroupStore(cfg)} }

// Expect makes the next group of the consumer wait until so many events have come, for a test that needs such a group.
func (b *Batches) Expect(consumer string, n int) {
	b.gatherers.Store(consumer, &gatherer{max: n, linger: time.Hour, expected: n})
}

// Waiting returns how many events of the consumer wait for others.
func (b *Batches) Waiting(consumer string) int {
	q, known := b.gatherers.Load(consumer)
	if !known {
		return 0
	}
	g := q.(*gatherer)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.forming == nil {
		return 0
	}
	return len(g.forming.members)
}

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

// Do claims the event together with others. One whose group fails through no fault of its own is claimed alone.
func (b *Batches) Do(ctx context.Context, key store.Key, fn func(ctx context.Context) error) Result {
	if _, ok := pgtx.From(ctx); ok || b.singly(key.Consumer) {
		return b.cfg.Alone(ctx, key, fn) // which refuses a transaction
	}
	m := newMember(context.WithoutCancel(ctx), key, fn) // its time begins with its handler
	defer close(m.settled)
	q, _ := b.gatherers.LoadOrStore(key.Consumer, &gatherer{max: b.cfg.Max, linger: linger})
	g, first := q.(*gatherer).join(m)
	if first {
		q.(*gatherer).await(g)
		go func() { // all members wait for it
			defer q.(*gatherer).end(g)
			b.run(g.members)
		}()
	}
	m.wait(g)
	if m.state == memberAgain {
		m.result = b.again(m)
	}
	return m.result
}

// again claims the event alone, after those that it must not overtake.
func (b *Batches) again(m *member) Result {
	for _, before := range []*member{m.twin, m.ahead} {
		if before == nil {
			continue
		}
		<-before.settled
		if !before.result.Settled() {
			return Result{Err: store.ErrContended}
		}
	}
	ctx, cancel := context.WithTimeout(m.ctx, b.cfg.Timeout(m.key.Consumer))
	defer cancel()
	return b.cfg.Alone(ctx, m.key, m.fn)
}

// run claims the members' events and runs their handlers, in one transaction.
func (b *Batches) run(members []*member) {
	link(members)
	claimed, err := b.store.do(members)
	if errors.Is(err, store.ErrStale) {
		b.cfg.Store.Forget(members[0].key.Consumer)
		claimed, err = b.store.do(members)
	}
	conclude(members, claimed, err)
	b.tellLeaving(members)
}
