package relay

import (
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/backoff"
	"github.com/millrace-go/millrace/outbox/internal/budget"
	"github.com/millrace-go/millrace/outbox/internal/crashguard"
	"github.com/millrace-go/millrace/outbox/internal/deferral"
	"github.com/millrace-go/millrace/outbox/internal/gaps"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

// shard is the relay's state of a shard whose lease it holds.
type shard struct {
	core *Core
	step.Ref
	gaps gaps.Tracker

	held   map[step.Identity]*step.Event
	queues map[string]*queue // by topic
	order  []*queue          // the same queues; the one that was served last is at the end
	keys   map[string]*key   // keys that have events in memory

	failing   map[*key]struct{}   // keys in backoff
	resumeAt  time.Time           // the first of them ends no earlier; zero: there is none
	stalled   map[*key]struct{}   // keys that wait for deferred events
	deferring int                 // topics that have deferred events
	blocked   map[string]struct{} // keys that have failed events in the table

	aside      []step.Aside // events to be moved to the failed events
	setting    []step.Aside // those that are being moved there
	wasAside   bool         // it is the turn of work on failed events
	asideLimit int
	asideRetry backoff.Backoff

	loaded      bool // blocked is complete
	due         bool // failed events may be due
	later       bool // some are due, and are fetched after the next poll
	fetching    bool
	fetchMore   backoff.Backoff
	fetchBytes  int                 // the limit of a fetch
	promote     map[string]struct{} // keys whose first failed event may no longer be blocked
	all         bool                // any key's may be due
	inFlight    map[int64]struct{}  // fetched failed events that are not settled
	settles     []settlement        // not recorded yet
	settling    bool                // the first one is being recorded
	settleRetry backoff.Backoff
	tried       map[int64]time.Time // when a failed event was last tried

	arrivals int64
	bytes    int // of payloads held
	bare     int // events held without their payload
	unsaved  int // events that are being sent, or sent and not deleted
	budget   budget.Budget

	answered time.Time // the last batch
	woken    bool      // there may be new rows
	rescanAt time.Time
	stopping time.Time // since when it takes no new events; zero: it takes them
	shunned  bool      // it is given back because the publisher does not return
	deadline time.Time // of the lease
	guard    crashguard.Guard
}

const (
	// leastBytes is the lowest limit of a fetch's bytes, after failed ones.
	leastBytes = budget.Least
	// maxAside is how many events one transaction moves.
	maxAside = 1000
)

func (c *Core) newShard(l step.Lease, deadline time.Time) *shard {
	c.ticks++
	return &shard{
		core: c, Ref: step.Ref{Shard: l.Shard, Lease: c.ticks, Term: l.Term}, gaps: c.cfg.Gaps(),
		held: map[step.Identity]*step.Event{}, queues: map[string]*queue{}, keys: map[string]*key{},
		failing: map[*key]struct{}{}, stalled: map[*key]struct{}{}, blocked: map[string]struct{}{},
		promote: map[string]struct{}{}, all: true,
		inFlight: map[int64]struct{}{}, tried: map[int64]time.Time{},
		asideLimit: maxAside, fetchBytes: fetchBytes, budget: budget.New(), woken: true, deadline: deadline,
		guard: crashguard.New(l, c.cfg.MaxInFlight),
	}
}

func (s *shard) queue(name string) *queue {
	q := s.queues[name]
	if q == nil {
		q = &queue{topic: s.core.topics.Of(name), window: max(1, s.core.share()/4), deferred: deferral.New(&s.deferring)}
		s.queues[name] = q
		s.order = append(s.order, q)
	}
	return q
}

// served moves a queue behind the others.
func (s *shard) served(q *queue) {
	i := slices.Index(s.order, q)
	s.order = append(slices.Delete(s.order, i, i+1), q)
}

// forgetEmpty drops queues that hold nothing.
func (s *shard) forgetEmpty() {
	s.order = slices.DeleteFunc(s.order, func(q *queue) bool {
		if q.empty() && len(s.order) > 64 { // a few cost nothing, and their windows are worth keeping
			delete(s.queues, q.topic.Name)
			return true
		}
		return false
	})
}

// take holds the events that it does not hold yet and returns their numbers. An event that is held without its payload gets it. scan is
// the number above which a scan has found the events, or NoScan.
func (s *shard) take(found []*step.Event, scan int64, drained bool) (fresh []int64) {
	for _, e := range found {
		if held := s.held[e.Identity()]; held != nil {
			if held.Payload == nil && e.Payload != nil && !held.Gone && !held.Leaving && queueOf(held).topic.Paused == 0 {
				s.load(held, e)
			}
			continue
		}
		if fresh == nil {
			fresh = make([]int64, 0, len(found))
		}
		fresh = append(fresh, e.Seq)
		s.budget.Sized(e.Size)
		q := s.queue(e.Topic)
		if drained {
			q.deferred.Take(e.Seq)
		} else if !q.deferred.Admit(e.Seq, e.Key, q.held >= q.quota(s.core), scan) {
			continue
		}
		s.arrivals++
		e.Arrival, e.InQueue = s.arrivals, q
		s.held[e.Identity()] = e
		q.held++
		if e.Payload == nil {
			s.strip(e, 1)
		}
		s.weigh(e, len(e.Payload))
		s.arrive(e)
	}
	return fresh
}

func (s *shard) weigh(e *step.Event, bytes int) {
	s.bytes += bytes
	queueOf(e).bytes += bytes
}

// strip counts an event that lost its payload (1) or has it again, or needs it no more (-1).
func (s *shard) strip(e *step.Event, n int) {
	s.bare += n
	queueOf(e).bare += n
}

func (s *shard) load(e, from *step.Event) {
	e.Headers, e.Payload = from.Headers, from.Payload
	s.strip(e, -1)
	s.weigh(e, len(e.Payload))
}

// unload drops the payload of a waiting event. It is read again before it is sent.
func (s *shard) unload(e *step.Event) {
	if e.Payload != nil {
		s.weigh(e, -len(e.Payload))
		s.strip(e, 1)
		e.Headers, e.Payload = nil, nil
	}
}

// release drops the payload of an event that was sent or set aside.
func (s *shard) release(e *step.Event) {
	if e.Payload == nil && !e.Gone {
		s.strip(e, -1)
	}
	s.weigh(e, -len(e.Payload))
	e.Headers, e.Payload = nil, nil
}

// drop forgets an event whose row is gone.
func (s *shard) drop(e *step.Event) {
	if s.held[e.Identity()] == e {
		delete(s.held, e.Identity())
		queueOf(e).held--
	}
}

// next returns a queue's next batch: at most limit events whose payloads are loaded.
func (s *shard) next(q *queue, limit int) []*step.Event {
	bytes, n := 0, 0
	for n < len(q.ready) && n < limit {
		e := q.ready[n]
		if e.Payload == nil && !e.Gone {
			break
		}
		if bytes += len(e.Payload); n > 0 && bytes > batchBytes {
			break
		}
		n++
	}
	batch := q.ready[:n:n]
	q.ready = q.ready[n:]
	if slices.ContainsFunc(batch, func(e *step.Event) bool { return e.Gone }) {
		batch = slices.DeleteFunc(slices.Clone(batch), func(e *step.Event) bool {
			if e.Gone {
				s.settleKey(e)
			}
			return e.Gone
		})
	}
	return batch
}

// idle reports whether nothing is in flight or being recorded.
func (s *shard) idle() bool {
	return s.unsaved == 0 && len(s.setting) == 0 && len(s.settles) == 0 && !slices.ContainsFunc(s.order, (*queue).busy)
}

// working reports whether there is something to publish.
func (s *shard) working() bool {
	for _, q := range s.order {
		if q.busy() || q.topic.Paused == 0 && len(q.ready)+len(q.failed) > 0 {
			return true
		}
	}
	return false
}

// weight returns the bytes of the payloads held, without those that stuck queues are sending: other queues must not wait for those.
func (s *shard) weight(now time.Time) int {
	bytes := s.bytes
	for _, q := range s.order {
		if q.stuck(now) {
			for _, e := range q.sending {
				bytes -= len(e.Payload)
			}
		}
	}
	return bytes
}

// shed drops payloads that wait behind stuck queues if they use much memory, in one shard or in all together.
func (c *Core) shed(now time.Time) {
	much := c.weight(now) >= maxBytes/2
	for _, s := range c.order {
		if much || s.bytes >= batchBytes/4 {
			s.shed(now)
		}
	}
}

func (s *shard) shed(now time.Time) {
	for _, q := range s.order {
		if q.bytes > 0 && q.stuck(now) {
			for _, e := range q.ready {
				if !e.Gone {
					s.unload(e)
				}
			}
		}
	}
}
