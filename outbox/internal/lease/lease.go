// Package lease decides which shards a relay asks for and which it gives back. A relay keeps its fair share. It leaves a shard to other
// relays if its own publisher does not return that shard's batch, and it leaves all shards while it publishes nothing. The package does
// no I/O, has no clock and starts no goroutine.
package lease

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/backoff"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

const (
	// stallAfter is how long a relay with work may publish nothing before it counts as struggling. A longer TTL extends that time.
	stallAfter = 15 * time.Second
	// firstRest is how long a relay first leaves a shard that it could not work on; mostRest is the longest such time.
	firstRest, mostRest = time.Minute, 10 * time.Minute
)

// Leases is the state of a relay's leases. It is not safe for concurrent use.
type Leases struct {
	ttl    time.Duration
	jitter func(time.Duration) time.Duration

	shards   int  // of the outbox
	alone    bool // no other relay shares them
	renewing bool
	renewAt  time.Time

	releasing  map[int16]time.Time       // shards that are being given back, and until when that may take
	shunned    map[int16]backoff.Backoff // shards that this relay does not take
	progress   time.Time                 // when an event was last published, or there was nothing to do
	resting    backoff.Backoff           // after it, a struggling relay tries again
	struggling bool
}

// New returns the Leases of a relay that holds none.
func New(ttl time.Duration, jitter func(time.Duration) time.Duration, now time.Time) *Leases {
	return &Leases{ttl: ttl, jitter: jitter, progress: now, releasing: map[int16]time.Time{}, shunned: map[int16]backoff.Backoff{}}
}

// Shards returns the number of the outbox's shards, or 0 before the first renewal.
func (l *Leases) Shards() int { return l.shards }

// Due reports whether to renew the leases, which happens four times per TTL. Otherwise at is the time of the next renewal, or zero during
// a renewal.
func (l *Leases) Due(now time.Time) (due bool, at time.Time) {
	if l.renewing {
		return false, time.Time{}
	}
	return !now.Before(l.renewAt), l.renewAt
}

// Renew begins a renewal. A relay that is ending takes no shard.
func (l *Leases) Renew(hold []int16, struggling, ending bool, topics []step.TopicState, now time.Time) step.Renew {
	l.renewing, l.renewAt = true, now.Add(l.ttl/4)
	r := step.Renew{Hold: hold, Struggling: struggling, Topics: topics}
	for n, rest := range l.shunned {
		if !l.alone && rest.Until.After(now) {
			r.Shun = append(r.Shun, n)
		}
	}
	if ending {
		for n := range int16(l.shards) {
			r.Shun = append(r.Shun, n)
		}
	}
	r.Left = len(r.Shun)
	for n, until := range l.releasing { // otherwise this relay would take a lease that ends at once
		if until.After(now) && !slices.Contains(r.Shun, n) {
			r.Shun = append(r.Shun, n)
		}
	}
	slices.Sort(r.Shun)
	return r
}

// Renewed handles the answer to a renewal. It returns the deadline of the leases or, if the renewal failed, the time until the next one.
func (l *Leases) Renewed(in step.Renewed, now time.Time) (deadline time.Time, again time.Duration) {
	l.renewing = false
	if in.Err != nil {
		return time.Time{}, max(l.renewAt.Sub(now), 0)
	}
	l.shards, l.alone = in.Shards, in.Fair >= in.Shards
	return in.Began.Add(l.ttl), 0
}

// Struggles reports whether this relay publishes nothing although there is something to publish. Its shards then go to relays that do not
// struggle. After a while it tries again.
func (l *Leases) Struggles(working bool, now time.Time) bool {
	switch {
	case l.struggling:
		if now.After(l.resting.Until) {
			l.struggling, l.progress = false, now
		}
	case !working:
		l.progress = now
	case now.Sub(l.progress) > max(stallAfter, 3*l.ttl):
		l.struggling = true
		l.resting.Failed(firstRest, mostRest, l.jitter, now)
	}
	return l.struggling
}

// GotOn records that something was published.
func (l *Leases) GotOn(now time.Time) {
	l.progress = now
	l.resting.OK()
}

// Shun records that the relay gives back a shard because the publisher does not return. The relay does not take the shard again for a
// while.
func (l *Leases) Shun(shard int16, now time.Time) {
	b := l.shunned[shard]
	b.Failed(firstRest, mostRest, func(d time.Duration) time.Duration { return d }, now)
	l.shunned[shard] = b
}

// Overdue reports whether a shard that should be given back since that time is given back even if something is in flight.
func (l *Leases) Overdue(since, now time.Time) bool { return now.Sub(since) > max(l.ttl, stallAfter) }

// Release records that a lease is being given back.
func (l *Leases) Release(shard int16, now time.Time) { l.releasing[shard] = now.Add(2 * l.ttl) }

// Released records that leases were given back.
func (l *Leases) Released(shards []int16) {
	for _, n := range shards {
		delete(l.releasing, n)
	}
}

// Held is a shard whose lease the relay holds.
type Held struct {
	Shard   int16
	Events  int  // in the relay's memory
	Leaving bool // it is already being given back
}

// Surplus chooses the shards that a relay must give back, those with the fewest events first. It includes those that the relay is already
// giving back.
func Surplus(fair int, held []Held) (shards []int16) {
	n := len(held) - fair
	var rest []Held
	for _, h := range held {
		if h.Leaving {
			n--
		} else {
			rest = append(rest, h)
		}
	}
	slices.SortStableFunc(rest, func(a, b Held) int {
		return cmp.Or(cmp.Compare(a.Events, b.Events), cmp.Compare(b.Shard, a.Shard))
	})
	for _, h := range rest[:min(max(n, 0), len(rest))] {
		shards = append(shards, h.Shard)
	}
	return shards
}
