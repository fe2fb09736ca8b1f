// Package ledger decides what the transactions of a group's member are. It does no I/O and has no clock.
package ledger

import (
	"slices"
	"time"

	"github.com/millrace-go/millrace/transport/kafka/internal/backoff"
)

// Ledger decides what a member's transactions are: which finished messages go into the next one, when it is due, and what
// follows its failure. It is a function of what was called and of the times given to it: it has no lock, no clock and no
// goroutine. Its owner guards it, and does what Next says, one step at a time.
//
// Whatever fails, the way on is the same. Fence: a new epoch of the producer ends what is open, and refuses what is still
// on its way. Resolve: the group's offsets tell the outcome, because a transaction commits them with its outputs. Then the
// batch is done, or it is committed again, or the partitions are another member's.
type Ledger struct {
	limits Limits

	queue   []*Unit   // in the order of their acks; in offset order for each partition
	batch   []*Unit   // of the transaction that is under way, in doubt, or to be dead-lettered
	latest  time.Time // when the queue's last one came
	phase   phase
	hurry   bool // the queue begins with what was in a transaction already
	closing bool

	failures int // in a row
	until    time.Time
	alarm    time.Time // until when Next has said to wait with what is in the queue

	refused  bool // the brokers do not take an output of the batch
	suspects int  // so many of the queue's first contain the one with that output; 0: nobody is looking for it
}

// Limits is when a transaction is due.
type Limits struct {
	Units, Bytes int
	Delay        time.Duration // after the first unit's ack
	Idle         time.Duration // after the latest one's
}

// Unit is a consumed message that is done, or a mark: a note that is committed at the offset that the group has, at once.
type Unit struct {
	Partition *Partition
	Offset    int64 // of a mark: the one before the group's
	Mark      bool
	Note      string // what the group keeps beside the offset
	Bytes     int    // of what its handler has published
	Dead      bool   // what is to be published is a dead letter
	Value     any    // the owner's

	at time.Time // of its ack
}

// Partition is what a ledger knows of a partition that the member has.
type Partition struct {
	Place
	Marked   int  // marks that are committed
	Flush    bool // it is about to be given up: what is finished of it is due
	Failures int  // in a row, of a unit whose outputs the brokers do not take
	Owner    any

	waiting int // units that are not committed yet
	bytes   int // of those
	gone    bool
	until   time.Time // the next attempt of the unit that failed
}

// Place is where a partition is.
type Place struct {
	Topic  string
	Number int32
}

// phase is where a ledger is.
type phase int

const (
	fencing       phase = iota // the producer needs an epoch; what is in the batch is in doubt
	resolving                  // it has one; what became of the batch is to be asked
	ready                      // nothing is under way
	ending                     // the batch is
	deadLettering              // the batch is one unit, for the dead letters
)

// Step is what a ledger's owner is to do.
type Step int

// The steps, and what the owner calls when it has done them.
const (
	Wait       Step = iota // until the time, or the next call
	Fence                  // then call Fenced
	Resolve                // then call Resolved
	Commit                 // then call Ended
	DeadLetter             // then call DeadLettered
	Stop                   // nothing is left of a ledger that was closed
)

// Outcome is how a transaction ended.
type Outcome int

// The outcomes.
const (
	Committed Outcome = iota
	Failed            // or nobody knows
	Refused           // the brokers do not take one of the outputs
	Lost              // the partitions are another member's
)

// Verdict is what the group's offsets tell of a batch.
type Verdict int

// The verdicts.
const (
	Unknown Verdict = iota
	Done            // it was committed
	Replay          // it was not
	Foreign         // its partitions are another member's
)

// The waits between attempts: the first, and the largest. They double.
const (
	firstRetry  = 10 * time.Millisecond
	lastRetry   = time.Second
	lastRefusal = time.Minute
)

// New returns a ledger whose producer has no epoch yet.
func New(limits Limits) *Ledger { return &Ledger{limits: limits} }

// Close makes what is left due.
func (l *Ledger) Close() { l.closing = true }

// Batch is what the step that Next has returned is about.
func (l *Ledger) Batch() []*Unit { return l.batch }

// Add queues units of a partition, which come in offset order. It tells whether Next has something new to say.
func (l *Ledger) Add(now time.Time, units ...*Unit) bool {
	before := len(l.queue)
	for _, u := range units {
		if u.Partition.gone {
			continue
		}
		u.at = now
		u.Partition.waiting++
		u.Partition.bytes += u.Bytes
		l.queue = append(l.queue, u)
	}
	l.latest = now
	if l.phase != ready || len(l.queue) == before {
		return false
	}
	latest := l.queue[len(l.queue)-1].Partition
	return before == 0 || l.queue[len(l.queue)-1].Mark || len(l.queue) >= l.limits.Units || latest.bytes >= l.limits.Bytes || l.sleepsThrough(now, latest)
}

// sleepsThrough tells whether the owner waits for longer than what has just come of the partition may wait: for another one,
// which waits for its next attempt.
func (l *Ledger) sleepsThrough(now time.Time, p *Partition) bool {
	return !p.until.After(now) && l.alarm.After(now.Add(l.limits.Idle))
}

// Full tells whether so much of the partition waits that no more of it should be handled.
func (l *Ledger) Full(p *Partition) bool {
	return p.waiting >= 2*l.limits.Units || p.bytes >= 2*l.limits.Bytes
}

// Settled tells whether nothing of the partition waits, or only what the brokers do not take.
func (l *Ledger) Settled(p *Partition) bool { return p.waiting == 0 || p.Failures > 0 }

// Drop forgets a partition: what is not committed of it is delivered again, by whoever has the partition then.
func (l *Ledger) Drop(p *Partition) {
	p.gone, p.waiting, p.bytes = true, 0, 0
	l.queue = slices.DeleteFunc(l.queue, gone)
}

func gone(u *Unit) bool { return u.Partition.gone }

// forget takes the units of dropped partitions out of the batch. If there are any, the refused output may be one of theirs, so the
// refusal accuses none of the others.
func (l *Ledger) forget() {
	before := len(l.batch)
	if l.batch = slices.DeleteFunc(l.batch, gone); len(l.batch) < before {
		l.refused = false
	}
}

// Next returns what is to be done at now, and for Wait until when.
func (l *Ledger) Next(now time.Time) (Step, time.Time) {
	switch l.phase {
	case fencing:
		if now.Before(l.until) {
			return Wait, l.until
		}
		return Fence, time.Time{}
	case resolving:
		if l.forget(); len(l.batch) == 0 {
			l.phase = ready
			return l.Next(now)
		}
		if now.Before(l.until) {
			return Wait, l.until
		}
		return Resolve, time.Time{}
	case deadLettering:
		return DeadLetter, time.Time{}
	case ready:
	case ending:
		return Wait, time.Time{}
	}
	if len(l.queue) == 0 {
		if l.closing {
			return Stop, time.Time{}
		}
		return Wait, time.Time{}
	}
	batch, rest, due := l.take(now)
	if l.alarm = due; len(batch) == 0 {
		return Wait, due
	}
	l.batch, l.queue, l.phase = batch, rest, ending
	l.hurry = false
	return Commit, time.Time{}
}

// take divides the queue into a batch and the rest when a transaction is due, and returns the time at which it is
// otherwise.
func (l *Ledger) take(now time.Time) (batch, rest []*Unit, due time.Time) {
	most := l.limits.Units
	if l.suspects > 0 {
		most = max(1, l.suspects/2)
	}
	bytes, flush, more := 0, l.hurry || l.closing, false
	var blocked time.Time
	for _, u := range l.queue {
		wait := u.Partition.until.After(now)
		switch {
		case wait:
			blocked = backoff.Earlier(blocked, u.Partition.until)
			rest = append(rest, u)
		case len(batch) > 0 && (more || batch[0].Partition.Failures > 0 || len(batch) >= most || bytes+u.Bytes > l.limits.Bytes):
			more = true
			rest = append(rest, u)
		case u.Partition.Failures > 0 && len(batch) > 0: // alone, lest it fails the others
			rest = append(rest, u)
		default:
			batch = append(batch, u)
			bytes += u.Bytes
			flush = flush || u.Partition.Flush || u.Mark
		}
	}
	if len(batch) == 0 {
		return nil, rest, blocked
	}
	due = backoff.Earlier(batch[0].at.Add(l.limits.Delay), l.latest.Add(l.limits.Idle))
	if flush || more || l.suspects > 0 || batch[0].Partition.Failures > 0 || len(batch) >= most || bytes >= l.limits.Bytes || !due.After(now) {
		return batch, rest, time.Time{}
	}
	return nil, nil, backoff.Earlier(due, blocked)
}

// Fenced ends the step Fence.
func (l *Ledger) Fenced(now time.Time, err error) {
	if err != nil {
		l.failed(now)
		return
	}
	l.phase = resolving
	l.until = time.Time{}
}

// Ended ends the step Commit.
func (l *Ledger) Ended(now time.Time, outcome Outcome) (lost []*Partition) {
	if outcome == Committed {
		l.committed()
		return nil
	}
	l.refused = outcome == Refused
	l.phase = fencing
	l.until = time.Time{}
	if outcome == Lost {
		return l.lose()
	}
	if l.failures++; l.failures > 1 && !l.refused {
		l.until = now.Add(pause(l.failures-1, lastRetry))
	}
	return nil
}

// Resolved ends the step Resolve. It returns the partitions that are another member's.
func (l *Ledger) Resolved(now time.Time, verdict Verdict) (lost []*Partition) {
	switch verdict {
	case Unknown:
		l.failures++
		l.until = now.Add(pause(l.failures, lastRetry))
		return nil
	case Done:
		l.committed()
		return nil
	case Foreign:
		lost = l.lose()
		l.phase = ready
		return lost
	case Replay:
	}
	l.phase = ready
	if l.forget(); l.refused {
		l.refused = false
		l.suspects = len(l.batch)
		if len(l.batch) == 1 {
			l.suspects = 0
			l.phase = deadLettering
			return nil
		}
	}
	l.putBack()
	return nil
}

// DeadLettered ends the step DeadLetter: whether the unit's outputs are now a dead letter that can be tried. Without that its
// partition waits, and the others go on.
func (l *Ledger) DeadLettered(now time.Time, ok bool) {
	l.phase = ready
	if u := l.batch[0]; !ok {
		u.Partition.Failures++
		u.Partition.until = now.Add(pause(u.Partition.Failures, lastRefusal))
	}
	l.putBack()
}

// Withheld ends the step Commit without a transaction: outputs of the partitions cannot be sent now. They wait, and the others
// go on.
func (l *Ledger) Withheld(now time.Time, partitions []*Partition) {
	l.phase = ready
	for _, p := range partitions {
		p.Failures++
		p.until = now.Add(pause(p.Failures, lastRetry))
	}
	l.putBack()
}

func (l *Ledger) putBack() {
	l.batch = slices.DeleteFunc(l.batch, gone)
	l.queue = append(l.batch, l.queue...)
	l.hurry = len(l.batch) > 0
	l.batch = nil
}

func (l *Ledger) committed() {
	for _, u := range l.batch {
		u.Partition.waiting = max(0, u.Partition.waiting-1)
		u.Partition.bytes = max(0, u.Partition.bytes-u.Bytes)
		u.Partition.Failures = 0
		if u.Mark {
			u.Partition.Marked++
		}
	}
	l.suspects = max(0, l.suspects-len(l.batch))
	l.batch, l.refused, l.failures, l.phase = nil, false, 0, ready
}

// lose drops the batch's partitions.
func (l *Ledger) lose() (lost []*Partition) {
	for _, u := range l.batch {
		if !u.Partition.gone {
			lost = append(lost, u.Partition)
			l.Drop(u.Partition)
		}
	}
	l.batch, l.refused, l.suspects, l.hurry = nil, false, 0, false
	return lost
}

func (l *Ledger) failed(now time.Time) {
	l.failures++
	l.until = now.Add(pause(l.failures, lastRetry))
}

// pause is how long to wait after that many failures.
func pause(failures int, last time.Duration) time.Duration {
	return backoff.Doubling{Min: firstRetry, Max: last}.Wait(failures)
}

// Position is how far the group has come in a partition.
type Position struct {
	Offset int64  // of what it handles next
	Note   string // beside it
}

// FirstOffsets is, for each partition of the batch, the offset that the group has before it.
func FirstOffsets(batch []*Unit) map[Place]int64 {
	first := map[Place]int64{}
	for _, u := range batch {
		if _, ok := first[u.Partition.Place]; ok {
			continue
		}
		first[u.Partition.Place] = u.Offset
		if u.Mark {
			first[u.Partition.Place]++
		}
	}
	return first
}

// NextOffsets is, for each partition of the batch, what follows its last unit.
func NextOffsets(batch []*Unit) map[Place]Position {
	next := map[Place]Position{}
	for _, u := range batch {
		next[u.Partition.Place] = Position{Offset: u.Offset + 1, Note: u.Note}
	}
	return next
}

// VerdictOf tells the outcome of a transaction that wanted to take the group's offsets from first, or from before, to next. The
// note tells it from one of another member that ended at the same offset.
func VerdictOf(first map[Place]int64, next, committed map[Place]Position) Verdict {
	done, replay := 0, 0
	for partition, at := range committed {
		wanted := next[partition]
		switch {
		case at == wanted:
			done++
		case at.Offset <= first[partition]:
			replay++
		}
	}
	switch len(next) {
	case done:
		return Done
	case replay:
		return Replay
	}
	return Foreign
}

func (o Outcome) String() string {
	return [...]string{Committed: "committed", Failed: "failed", Refused: "refused", Lost: "lost"}[o]
}

func (v Verdict) String() string {
	return [...]string{Unknown: "unknown", Done: "committed", Replay: "replay", Foreign: "lost"}[v]
}
