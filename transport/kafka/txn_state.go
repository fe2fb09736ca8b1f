package kafka

import (
	"slices"
	"time"
)

// ledger decides what a member's transactions are: which finished messages go into the next one, when it is due, and what
// follows its failure. It is a function of what was called and of the times given to it: it has no lock, no clock and no
// goroutine. Its owner guards it, and does what next says, one step at a time.
//
// Whatever fails, the way on is the same. Fence: a new epoch of the producer ends what is open, and refuses what is still
// on its way. Resolve: the group's offsets tell the outcome, because a transaction commits them with its outputs. Then the
// batch is done, or it is committed again, or the partitions are another member's.
type ledger struct {
	limits txnLimits

	queue   []*txnUnit // in the order of their acks; in offset order for each partition
	batch   []*txnUnit // of the transaction that is under way, in doubt, or to be buried
	latest  time.Time  // when the queue's last one came
	phase   txnPhase
	hurry   bool // the queue begins with what was in a transaction already
	closing bool

	failures int // in a row
	until    time.Time

	refused  bool // the brokers do not take an output of the batch
	suspects int  // so many of the queue's first contain the one with that output; 0: nobody is looking for it
}

// txnLimits is when a transaction is due.
type txnLimits struct {
	units, bytes int
	delay        time.Duration // after the first unit's ack
	idle         time.Duration // after the latest one's
}

// txnUnit is a consumed message that is done, and what its handler has published.
type txnUnit struct {
	claim   *txnClaim
	offset  int64
	outputs []*output
	bytes   int
	at      time.Time // of its ack
	dead    bool      // its output is a dead letter
	entry   *entry    // what it was
}

// txnClaim is what a ledger knows of a partition that the member has.
type txnClaim struct {
	owner    *claimed
	number   int32
	waiting  int // units that are not committed yet
	bytes    int // of those
	flush    bool
	gone     bool
	failures int       // in a row, of a unit whose outputs the brokers do not take
	until    time.Time // the next attempt of that one
}

// txnPhase is where a ledger is.
type txnPhase int

const (
	txnFencing   txnPhase = iota // the producer needs an epoch; what is in the batch is in doubt
	txnResolving                 // it has one; what became of the batch is to be asked
	txnReady                     // nothing is under way
	txnEnding                    // the batch is
	txnBurying                   // the batch is one unit, for the dead letters
)

// txnStep is what a ledger's owner is to do.
type txnStep int

const (
	txnWait    txnStep = iota // until the time, or the next call
	txnFence                  // then call fenced
	txnResolve                // then call resolved
	txnCommit                 // then call ended
	txnBury                   // then call buried
	txnStop                   // nothing is left of a ledger that was closed
)

// txnOutcome is how a transaction ended.
type txnOutcome int

const (
	txnCommitted txnOutcome = iota
	txnFailed               // or nobody knows
	txnRefused              // the brokers do not take one of the outputs
	txnLost                 // the partitions are another member's
)

// txnVerdict is what the group's offsets tell of a batch.
type txnVerdict int

const (
	txnUnknown txnVerdict = iota
	txnDone
	txnReplay
	txnForeign
)

// The waits between attempts: the first, and the largest. They double.
const (
	firstTxnRetry = 10 * time.Millisecond
	lastTxnRetry  = time.Second
	lastRefusal   = time.Minute
)

// add queues units of a claim, which come in offset order. It tells whether next has something new to say.
func (l *ledger) add(now time.Time, units ...*txnUnit) bool {
	before := len(l.queue)
	for _, u := range units {
		if u.claim.gone {
			continue
		}
		u.at = now
		u.claim.waiting++
		u.claim.bytes += u.bytes
		l.queue = append(l.queue, u)
	}
	l.latest = now
	return l.phase == txnReady && (before == 0 || len(l.queue) >= l.limits.units || l.queue[len(l.queue)-1].claim.bytes >= l.limits.bytes)
}

// full tells whether so much of the claim waits that no more of it should be handled.
func (l *ledger) full(c *txnClaim) bool {
	return c.waiting >= 2*l.limits.units || c.bytes >= 2*l.limits.bytes
}

// settled tells whether nothing of the claim waits, or only what the brokers do not take.
func (l *ledger) settled(c *txnClaim) bool { return c.waiting == 0 || c.failures > 0 }

// drop forgets a claim: what is not committed of it is delivered again, by whoever has the partition then.
func (l *ledger) drop(c *txnClaim) {
	c.gone, c.waiting, c.bytes = true, 0, 0
	l.queue = slices.DeleteFunc(l.queue, gone)
}

func gone(u *txnUnit) bool { return u.claim.gone }

// next returns what is to be done at now, and for txnWait until when.
func (l *ledger) next(now time.Time) (txnStep, time.Time) {
	switch l.phase {
	case txnFencing:
		if now.Before(l.until) {
			return txnWait, l.until
		}
		return txnFence, time.Time{}
	case txnResolving:
		l.batch = slices.DeleteFunc(l.batch, gone)
		if len(l.batch) == 0 {
			l.refused = false
			l.phase = txnReady
			return l.next(now)
		}
		if now.Before(l.until) {
			return txnWait, l.until
		}
		return txnResolve, time.Time{}
	case txnBurying:
		return txnBury, time.Time{}
	case txnReady:
	case txnEnding:
		return txnWait, time.Time{}
	}
	if len(l.queue) == 0 {
		if l.closing {
			return txnStop, time.Time{}
		}
		return txnWait, time.Time{}
	}
	batch, rest, due := l.take(now)
	if len(batch) == 0 {
		return txnWait, due
	}
	l.batch, l.queue, l.phase = batch, rest, txnEnding
	l.hurry = false
	return txnCommit, time.Time{}
}

// take divides the queue into a batch and the rest when a transaction is due, and returns the time at which it is
// otherwise.
func (l *ledger) take(now time.Time) (batch, rest []*txnUnit, due time.Time) {
	most := l.limits.units
	if l.suspects > 0 {
		most = max(1, l.suspects/2)
	}
	bytes, flush, more := 0, l.hurry || l.closing, false
	var blocked time.Time
	for _, u := range l.queue {
		wait := u.claim.until.After(now)
		switch {
		case wait:
			blocked = earlier(blocked, u.claim.until)
			rest = append(rest, u)
		case len(batch) > 0 && (more || batch[0].claim.failures > 0 || len(batch) >= most || bytes+u.bytes > l.limits.bytes):
			more = true
			rest = append(rest, u)
		case u.claim.failures > 0 && len(batch) > 0: // alone, lest it fails the others
			rest = append(rest, u)
		default:
			batch = append(batch, u)
			bytes += u.bytes
			flush = flush || u.claim.flush
		}
	}
	if len(batch) == 0 {
		return nil, rest, blocked
	}
	due = earlier(batch[0].at.Add(l.limits.delay), l.latest.Add(l.limits.idle))
	if flush || more || l.suspects > 0 || batch[0].claim.failures > 0 || len(batch) >= most || bytes >= l.limits.bytes || !due.After(now) {
		return batch, rest, time.Time{}
	}
	return nil, nil, earlier(due, blocked)
}

// earlier returns the earlier of two times, of which the zero one is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// fenced ends the step txnFence.
func (l *ledger) fenced(now time.Time, err error) {
	if err != nil {
		l.failed(now)
		return
	}
	l.phase = txnResolving
	l.until = time.Time{}
}

// ended ends the step txnCommit.
func (l *ledger) ended(now time.Time, outcome txnOutcome) (lost []*txnClaim) {
	if outcome == txnCommitted {
		l.committed()
		return nil
	}
	l.refused = outcome == txnRefused
	l.phase = txnFencing
	l.until = time.Time{}
	if outcome == txnLost {
		return l.lose()
	}
	if l.failures++; l.failures > 1 && !l.refused {
		l.until = now.Add(backoff(l.failures-1, lastTxnRetry))
	}
	return nil
}

// resolved ends the step txnResolve. It returns the claims that are another member's.
func (l *ledger) resolved(now time.Time, verdict txnVerdict) (lost []*txnClaim) {
	switch verdict {
	case txnUnknown:
		l.failures++
		l.until = now.Add(backoff(l.failures, lastTxnRetry))
		return nil
	case txnDone:
		l.committed()
		return nil
	case txnForeign:
		lost = l.lose()
		l.phase = txnReady
		return lost
	case txnReplay:
	}
	l.phase = txnReady
	if l.refused {
		l.refused = false
		l.suspects = len(l.batch)
		if len(l.batch) == 1 {
			l.suspects = 0
			l.phase = txnBurying
			return nil
		}
	}
	l.putBack()
	return nil
}

// buried ends the step txnBury: whether the unit's outputs are now a dead letter that can be tried. Without that its
// partition waits, and the others go on.
func (l *ledger) buried(now time.Time, ok bool) {
	l.phase = txnReady
	if u := l.batch[0]; !ok {
		u.claim.failures++
		u.claim.until = now.Add(backoff(u.claim.failures, lastRefusal))
	}
	l.putBack()
}

func (l *ledger) putBack() {
	l.batch = slices.DeleteFunc(l.batch, gone)
	l.queue = append(l.batch, l.queue...)
	l.hurry = len(l.batch) > 0
	l.batch = nil
}

func (l *ledger) committed() {
	for _, u := range l.batch {
		u.claim.waiting = max(0, u.claim.waiting-1)
		u.claim.bytes = max(0, u.claim.bytes-u.bytes)
		u.claim.failures = 0
	}
	l.suspects = max(0, l.suspects-len(l.batch))
	l.batch, l.refused, l.failures, l.phase = nil, false, 0, txnReady
}

// lose drops the batch's claims.
func (l *ledger) lose() (lost []*txnClaim) {
	for _, u := range l.batch {
		if !u.claim.gone {
			lost = append(lost, u.claim)
			l.drop(u.claim)
		}
	}
	l.batch, l.refused, l.suspects, l.hurry = nil, false, 0, false
	return lost
}

func (l *ledger) failed(now time.Time) {
	l.failures++
	l.until = now.Add(backoff(l.failures, lastTxnRetry))
}

// backoff is how long to wait after that many failures.
func backoff(failures int, last time.Duration) time.Duration {
	return Retry{Min: firstTxnRetry, Max: last}.wait(failures)
}
