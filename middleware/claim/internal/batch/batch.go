// Package batch claims several events of a consumer in one transaction. It runs their handlers one after the other, each in its own
// savepoint.
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
	// linger is the longest time that a message waits for others to share a transaction with.
	linger = 2 * time.Millisecond
	// Most keeps a transaction below 64 subtransactions, the number that a PostgreSQL backend can publish to others.
	Most = 50
)

// Result is the outcome of an event.
type Result struct {
	Ran bool  // the handler was called, and Err is its own, even if it is ErrCompleted of another claim
	Err error // nil: the claim is completed
}

// Settled reports whether the event has its record: it was completed now or before.
func (r Result) Settled() bool {
	return r.Ran && r.Err == nil || !r.Ran && errors.Is(r.Err, store.ErrCompleted)
}

// Config configures Batches. Every field is required.
type Config struct {
	Store *store.Postgres
	Max   int  // how many events may share a transaction
	Async bool // the caller makes commits durable

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

// New returns empty Batches.
func New(cfg Config) *Batches { return &Batches{cfg: cfg, store: newGroupStore(cfg)} }

// Expect makes the next group of the consumer wait for n events. It is for tests.
func (b *Batches) Expect(consumer string, n int) {
	b.gatherers.Store(consumer, &gatherer{max: n, linger: time.Hour, expected: n})
}

// Waiting returns how many events of the consumer wait for their group to start.
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

// gatherer puts concurrent messages of one consumer into groups. It does not wait for messages that cannot come: a group starts
// when it has as many messages as were in flight together before, and at the latest after linger.
type gatherer struct {
	max    int
	linger time.Duration

	mu       sync.Mutex
	forming  *group
	running  int // groups
	inHand   int // their messages
	expected int // how many messages may come: the most in flight since a group started with fewer
}

// group is the messages of one transaction.
type group struct {
	members []*member     // in the order of their arrival
	begins  chan struct{} // closed when no more messages can join
	ended   chan struct{} // closed when every member's outcome is known
}

// join adds the message to the forming group. The first message of a group must make sure that it runs.
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

// complete reports whether all expected messages have come, and no group is running whose messages may be followed by more.
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

// await returns when the group starts.
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

// Do claims the event together with others. If its group fails and the event may not be the cause, it is claimed alone.
func (b *Batches) Do(ctx context.Context, key store.Key, fn func(ctx context.Context) error) Result {
	if _, ok := pgtx.From(ctx); ok || b.singly(key.Consumer) {
		return b.cfg.Alone(ctx, key, fn) // Alone refuses a transaction in the context
	}
	m := newMember(context.WithoutCancel(ctx), key, fn) // its timeout starts with its handler
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

// again claims the event alone, after the events that it must not overtake.
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

// run claims the members' events and runs their handlers in one transaction.
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
