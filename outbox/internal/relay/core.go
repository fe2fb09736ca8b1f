// Package relay decides what a relay does: which rows it reads, which events it sends next, what a failure means for an event, its key
// and its topic, and when to take and give back a shard. It does no I/O, has no clock and starts no goroutine.
//
// [Core.Apply] takes typed inputs: what a read found, what the broker answered, which leases a renewal returned. [Core.Next] returns
// typed actions. Package outbox carries them out and reports the result of each. Package step defines the actions and inputs.
package relay

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/backoff"
	"github.com/millrace-go/millrace/outbox/internal/delayed"
	"github.com/millrace-go/millrace/outbox/internal/gaps"
	"github.com/millrace-go/millrace/outbox/internal/lease"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/topic"
)

// Config configures a Core. Every field is required.
type Config struct {
	BatchSize   int  // of a batch
	MaxInFlight int  // events of a shard
	Batches     bool // the publisher takes batches

	PollInterval time.Duration
	LeaseTTL     time.Duration
	StuckAfter   time.Duration // after it, no answer to a batch in flight is expected
	CrashPause   time.Duration // how long the crash guard sets an event aside
	Gather       time.Duration // from the answer to a batch of a shard to the next one, unless that is full; 0: no time

	Fault func(error) Fault
	// Retry decides about an event of the topic that has failed with err, after attempts failures of its own: whether it is dead, and
	// otherwise how long it waits. With attempts = 0 it says whether the error makes an event dead at once.
	Retry  func(topic string, err error, attempts int) (dead bool, wait time.Duration)
	Gaps   func() gaps.Tracker
	Jitter func(time.Duration) time.Duration
}

// rules are decisions that tests of this package replace, to show why they are needed.
type rules struct {
	quota     func(*Core) int                             // events of a topic that a shard holds
	room      func(*shard, *queue, time.Time) (int, bool) // events that a queue may send
	hungry    func(*shard, time.Time) bool                // the shard needs more events
	expired   func(*shard, time.Time) bool                // nothing may be sent any more
	turn      func(*queue) bool                           // failed events are next
	surplus   func(fair int, held []lease.Held) []int16   // shards to give back
	struggles func(*Core, time.Time) bool
	sends     func(step.Publish, time.Time) bool // the batch may be sent now
	scan      func(step.Request) int64           // above which a scan returns all rows
	passes    func(*shard) int                   // deferred rows that a scan may return
}

// Core decides what a relay does. It is not safe for concurrent use.
type Core struct {
	cfg   Config
	rules rules

	shards map[int16]*shard
	order  []*shard            // the same, by number
	ended  map[step.Ref]*shard // shards whose lease has ended, until their batches are answered
	topics topic.Set
	leases *lease.Leases
	ticks  uint64 // counts leases, and changes of operators' settings
	out    []step.Action

	reading     bool
	asked       []step.Request
	fetches     [][]int64 // for each request, numbers whose payloads were left out before
	readSince   time.Time // when the last read began
	readAfter   time.Time // for pacing, or after an error
	readRetry   backoff.Backoff
	rescans     []step.RescanRequest // under way
	rescanned   time.Time            // when it began
	rescanAfter time.Time            // no other rescan before this time

	unsaved   []saved // published, not yet deleted
	since     time.Time
	saving    []saved
	saveLimit int
	saveRetry backoff.Backoff
	waits     bool // a shard waits for its deletes
	ghosts    []ghost

	pollAt    time.Time
	polling   bool
	asks      uint64 // ticks when the poll began
	heard     uint64 // ticks when operators' settings last came
	delayed   delayed.Mover
	noted     *shard // has an event that is sent alone, or whose delete is awaited
	notedID   string // the ID of that event
	ending    bool
	lastShard int // index of the shard that is served first
}

const (
	// saveDelay is how long deletes are collected.
	saveDelay = 15 * time.Millisecond
	// fullSave is how many rows are deleted without that delay. maxSave is how many rows one statement deletes. After a failure it deletes
	// half as many.
	fullSave, maxSave = 2000, 4000
	// maxRead is how many rows one round trip reads of several shards. It is two batches if that is more.
	maxRead = 4000
	// maxPace is the longest pause between reads under load, so that each finds more.
	maxPace = 25 * time.Millisecond
	// slowRead is how long a read may take before the relay no longer counts as making progress.
	slowRead = 15 * time.Second
	// rescanEvery is the time between two rescans of a shard. After a rescan, no rescan starts for rescanShare times its duration.
	rescanEvery, rescanShare = 5 * time.Second, 20
)

// New returns a Core that holds nothing.
func New(cfg Config, now time.Time) *Core {
	c := &Core{
		cfg: cfg, shards: map[int16]*shard{}, ended: map[step.Ref]*shard{}, topics: topic.Set{}, leases: lease.New(cfg.LeaseTTL, cfg.Jitter, now),
		delayed: delayed.New(cfg.PollInterval), saveLimit: maxSave,
	}
	c.rules = rules{
		quota: (*Core).quota, room: (*shard).room, hungry: (*shard).hungry, expired: (*shard).expired, turn: (*queue).turn,
		surplus: lease.Surplus, struggles: (*Core).struggles, sends: step.Publish.InTime,
		scan: func(q step.Request) int64 { return q.From }, passes: func(s *shard) int { return s.budget.Passes() },
	}
	return c
}

func (c *Core) do(a step.Action) { c.out = append(c.out, a) }

func (c *Core) report(r step.Report) { c.out = append(c.out, r) }

// backOff records that an action has failed and returns how long it waits.
func (c *Core) backOff(b *backoff.Backoff, now time.Time) time.Duration {
	return b.Failed(backoff.First, backoff.Most, c.cfg.Jitter, now)
}

// failed reports the error of an action that will be repeated.
func (c *Core) failed(action string, s int16, in time.Duration, err error) {
	c.report(step.Report{Kind: step.ReportError, Action: action, Shard: s, In: in, Err: err})
}

// shard returns the shard of the lease, or nil if the lease has ended.
func (c *Core) shard(r step.Ref) *shard {
	if s := c.shards[r.Shard]; s != nil && s.Ref == r {
		return s
	}
	return nil
}

// Apply handles an input.
func (c *Core) Apply(now time.Time, in step.Input) {
	switch in := in.(type) {
	case step.Renewed:
		c.renewed(in, now)
	case step.BlockedLoaded:
		c.blockedLoaded(in, now)
	case step.ReadDone:
		c.readDone(in, now)
	case step.Rescanned:
		c.rescanDone(in, now)
	case step.Published:
		c.published(in, now)
	case step.Deleted:
		c.deleted(in, now)
	case step.WasSetAside:
		c.wasSetAside(in, now)
	case step.FailedFetched:
		c.failedFetched(in, now)
	case step.FailedSettled:
		c.failedSettled(in, now)
	case step.Polled:
		c.polled(in, now)
	case step.DelayedMoved:
		c.delayedMoved(in, now)
	case step.Released:
		if in.Err != nil {
			c.failed("give shards back", 0, 0, in.Err)
			break
		}
		c.leases.Released(in.Shards)
	case step.SuspectCleared:
		if in.Err != nil {
			c.failed("note that a shard gets on", 0, 0, in.Err)
		}
	case step.Woken:
		c.woken(in)
	case step.DeadRetried:
		c.deadRetried(in, now)
	case step.Stop:
		c.ending = true
	default:
		panic(fmt.Sprintf("relay: unknown input %T", in))
	}
}

// Drained reports whether no published event waits for its delete. If no action is running either, the relay can end.
func (c *Core) Drained() bool {
	return len(c.unsaved)+len(c.saving) == 0 && !slices.ContainsFunc(c.order, func(s *shard) bool { return len(s.settles) > 0 })
}

// Held returns the numbers of the shards whose leases the relay holds, ascending.
func (c *Core) Held() []int16 {
	held := make([]int16, len(c.order))
	for i, s := range c.order {
		held[i] = s.Shard
	}
	return held
}

// Shards returns the number of the outbox's shards, or 0 before the first renewal.
func (c *Core) Shards() int { return c.leases.Shards() }

// Gaps returns how many gaps the reads look for.
func (c *Core) Gaps() (n int) {
	for _, s := range c.order {
		n += len(s.gaps.List())
	}
	return n
}

// Unsaved returns the published rows whose delete has not been confirmed.
func (c *Core) Unsaved() (rows []step.ShardRow) {
	for _, u := range slices.Concat(c.saving, c.unsaved) {
		rows = append(rows, step.ShardRow{Shard: u.shard.Shard, Row: &u.event.Row})
	}
	return rows
}

// Next returns the actions to carry out now, and how long to wait before the next call if there is no input before.
func (c *Core) Next(now time.Time) (actions []step.Action, wait time.Duration) {
	wait = time.Hour
	until := func(t time.Time) {
		if !t.IsZero() {
			wait = min(wait, max(t.Sub(now), 0))
		}
	}
	c.waits = false
	until(c.renew(now))
	for i := range c.order {
		s := c.order[(c.lastShard+i)%len(c.order)]
		until(c.serve(s, now))
	}
	if len(c.order) > 0 {
		c.lastShard = (c.lastShard + 1) % len(c.order)
	}
	until(c.save(now))
	if !c.ending {
		c.giveBack(now)
		until(c.poll(now))
		until(c.moveDelayed(now))
		until(c.retryDead(now))
		until(c.rescan(now))
		until(c.read(now))
	}
	actions, c.out = c.out, nil
	return actions, wait
}

// serve starts the possible actions for a shard and returns when to call it again.
func (c *Core) serve(s *shard, now time.Time) (at time.Time) {
	if !c.ending && s.stopping.IsZero() {
		s.resume(now)
		at = s.resumeAt
		if c.rules.expired(s, now) {
			return at // the next renewal decides
		}
		at = backoff.Earliest(at, c.publish(s, now))
	}
	return backoff.Earliest(at, c.serveFailed(s, now))
}

// expired reports whether another relay may have the lease by now.
func (s *shard) expired(now time.Time) bool { return !step.Holds(s.deadline, now) }

// turn reports whether the next batch is one of failed events: every other batch is, while there are any.
func (q *queue) turn() bool { return len(q.failed) > 0 && (!q.retried || len(q.ready) == 0) }

// publish starts a batch in each free queue of the shard.
func (c *Core) publish(s *shard, now time.Time) (at time.Time) {
	next := s.answered.Add(c.cfg.Gather)
	for _, q := range slices.Clone(s.order) {
		if q.busy() {
			if now.Sub(q.since) <= slow && !c.rules.hungry(s, now) { // after that, the shard reads for other queues
				at = backoff.Earliest(at, q.since.Add(slow+time.Millisecond))
			}
			c.watch(s, q, now)
			at = backoff.Earliest(at, q.since.Add(c.cfg.StuckAfter))
			continue
		}
		if len(q.ready) == 0 && len(q.failed) == 0 {
			continue
		}
		if q.topic.Stands(now) {
			at = backoff.Earliest(at, q.topic.Next())
			s.putBack(q)
			continue
		}
		retries := c.rules.turn(q)
		if !retries && (q.retry.Until.After(now) || len(q.ready) == 0) {
			at = backoff.Earliest(at, q.retry.Until)
			if len(q.failed) == 0 {
				continue
			}
			retries = true
		}
		n, wait := c.rules.room(s, q, now)
		if wait {
			c.waits = true
			continue
		}
		if s.guard.Careful() || retries && q.failed[0][0].Crash {
			if c.noted != nil {
				c.waits = true
				continue
			}
			n = 1
		}
		if !retries && len(q.ready) < n {
			if until := q.gather(next, c.cfg.Gather, now); until.After(now) {
				at = backoff.Earliest(at, until)
				continue
			}
		}
		q.gathers = time.Time{}
		if retries {
			c.sendFailed(s, q, n, now)
		} else {
			c.send(s, q, n, now)
		}
	}
	s.forgetEmpty()
	return at
}

// send sends a batch of at most n events.
func (c *Core) send(s *shard, q *queue, n int, now time.Time) {
	batch := s.next(q, n)
	if len(batch) == 0 {
		return
	}
	noted := s.guard.Careful()
	if noted {
		s.guard.Sends()
		if s.accuse(q, batch[0]) {
			return
		}
		c.noted, c.notedID = s, batch[0].EventID
	}
	q.sending, q.retried = batch, false
	rows := make([]*step.Row, len(batch))
	for i, e := range batch {
		rows[i] = &e.Row
	}
	s.dispatch(q, rows, noted, now)
}

// dispatch publishes the rows of a queue's batch.
func (s *shard) dispatch(q *queue, rows []*step.Row, noted bool, now time.Time) {
	q.send(now)
	s.unsaved += len(rows)
	q.unsaved += len(rows)
	s.served(q)
	s.core.do(step.Publish{Ref: s.Ref, Queue: q.topic.Name, To: q.topic.To, Rows: rows, Noted: noted, Deadline: s.deadline})
}

// published handles the broker's answers. Answers for a lease that has ended count too: published rows are deleted.
func (c *Core) published(in step.Published, now time.Time) {
	s := c.shard(in.Ref)
	ended := s == nil
	if ended {
		if s = c.ended[in.Ref]; s == nil {
			return
		}
		for i, err := range in.Results { // its publisher was canceled, so an error says nothing about the broker
			if err != nil {
				in.Results[i] = step.ErrLeaseOver
			}
		}
	}
	s.answered = now
	q := s.queues[in.Queue]
	if len(q.retries) > 0 {
		s.settleFailed(q, in.Results, now)
	} else {
		if c.isNoted(s, q.sending[0].EventID) && in.Results[0] != nil { // the relay survived it
			s.survived(q.sending[0].EventID)
		}
		s.settle(q, in.Results, now)
	}
	switch {
	case !ended:
		c.pass(s)
	case !slices.ContainsFunc(s.order, (*queue).busy):
		delete(c.ended, in.Ref)
	}
}

// poll looks for due failed events, for operators' settings, and for rows that no wake-up announced.
func (c *Core) poll(now time.Time) (at time.Time) {
	if now.Before(c.pollAt) {
		return c.pollAt
	}
	if c.polling {
		return time.Time{}
	}
	c.pollAt = now.Add(c.cfg.PollInterval)
	c.topics.Forget(c.usedTopics)
	for _, s := range c.order {
		s.woken = true
		s.due, s.later = s.due || s.later, false
	}
	if len(c.order) > 0 {
		c.polling, c.asks = true, c.ticks
		c.do(step.Poll{Shards: c.Held()})
	}
	return c.pollAt
}

// pollIn brings the next poll forward for an event that is due after d. d = 0 means that none is.
func (c *Core) pollIn(d time.Duration, now time.Time) {
	if d > 0 && now.Add(d).Before(c.pollAt) {
		c.pollAt = now.Add(d)
	}
}

func (c *Core) polled(in step.Polled, now time.Time) {
	c.polling = false
	if in.Err != nil {
		c.failed("look for failed events that are due", 0, max(c.pollAt.Sub(now), 0), in.Err)
		return
	}
	c.control(in.Controls, c.asks)
	for _, n := range in.Due {
		if s := c.shards[n]; s != nil {
			s.due = true
		}
	}
}

// moveDelayed moves due delayed events into the outbox.
func (c *Core) moveDelayed(now time.Time) (at time.Time) {
	if len(c.order) == 0 {
		return time.Time{}
	}
	limit, at := c.delayed.Next(now)
	if limit > 0 {
		c.do(step.MoveDelayed{Limit: limit})
	}
	return at
}

func (c *Core) delayedMoved(in step.DelayedMoved, now time.Time) {
	if wait := c.delayed.Done(in, c.cfg.Jitter, now); in.Err != nil {
		c.failed("move delayed events that are due", 0, wait, in.Err)
	}
}

// woken handles a wake-up.
func (c *Core) woken(in step.Woken) {
	if in.Look { // an operator may have given a command
		c.pollAt = time.Time{}
	}
	for _, s := range c.order {
		if in.All || slices.Contains(in.Shards, s.Shard) {
			s.woken = true
		}
	}
}

// reorder sorts the shards after a change.
func (c *Core) reorder() {
	c.order = c.order[:0]
	for _, s := range c.shards {
		c.order = append(c.order, s)
	}
	slices.SortFunc(c.order, func(a, b *shard) int { return cmp.Compare(a.Shard, b.Shard) })
}
