// Package lease decides for which shards a relay asks, and which it gives back: it keeps its fair share, leaves shards to others whose
// batches its publisher does not answer, and leaves all of them while it gets nothing published. It does no I/O, has no clock and
// starts no goroutine.
package lease

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/backoff"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

const (
	// stallAfter is how long a relay has work and publishes nothing before it counts as struggling. A long TTL makes that time longer.
	stallAfter = 15 * time.Second
	// firstRest is how long a relay takes no shard that it could not work on, and mostRest the longest such time.
	firstRest, mostRest = time.Minute, 10 * time.Minute
)

// Leases is what a relay remembers of its leases. One goroutine uses it.
type Leases struct {
	ttl    time.Duration
	jitter func(time.Duration) time.Duration

	shards   int  // the outbox has
	alone    bool // no other relay shares them
	renewing bool
	renewAt  time.Time

	releasing  map[int16]time.Time       // shards that are being given back, and until when they may be
	shunned    map[int16]backoff.Backoff // shards that this relay does not take
	progress   time.Time                 // when an event was last published, or nothing was to be done
	resting    backoff.Backoff           // a struggling relay tries again after it
	struggling bool
}

// New returns the Leases of a relay that holds none.
func New(ttl time.Duration, jitter func(time.Duration) time.Duration, now time.Time) *Leases {
	return &Leases{ttl: ttl, jitter: jitter, progress: now, releasing: map[int16]time.Time{}, shunned: map[int16]backoff.Backoff{}}
}

// Shards returns how many shards the outbox has; 0 before the first renewal.
func (l *Leases) Shards() int { return l.shards }

// Due reports whether the leases are to be renewed, which is four times in their life, and otherwise when: zero while a renewal is
// under way.
func (l *Leases) Due(now time.Time) (due bool, at time.Time) {
	if l.renewing {
		return false, time.Time{}
	}
	return !now.Before(l.renewAt), l.renewAt
}

// Renew begins a renewal. A relay that ends takes no shard.
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
	for n, until := range l.releasing { // or this relay would take a lease that ends at once
		if until.After(now) && !slices.Contains(r.Shun, n) {
			r.Shun = append(r.Shun, n)
		}
	}
	slices.Sort(r.Shun)
	return r
}

// Renewed takes the answer of a renewal. It returns until when the leases hold, or how long it takes to the next renewal if this one
// failed.
func (l *Leases) Renewed(in step.Renewed, now time.Time) (deadline time.Time, again time.Duration) {
	l.renewing = false
	if in.Err != nil {
		return time.Time{}, max(l.renewAt.Sub(now), 0)
	}
	l.shards, l.alone = in.Shards, in.Fair >= in.Shards
	return in.Began.Add(l.ttl), 0
}

// Struggles reports whether this relay gets nothing published although there is something to publish. Then its shards go to relays
// that do not struggle. After a while it tries again.
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

// GotOn notes that something was published.
func (l *Leases) GotOn(now time.Time) {
	l.progress = now
	l.resting.OK()
}

// Shun notes that the relay gives a shard back because the publisher does not return, and does not take it again for a while.
func (l *Leases) Shun(shard int16, now time.Time) {
	b := l.shunned[shard]
	b.Failed(firstRest, mostRest, func(d time.Duration) time.Duration { return d }, now)
	l.shunned[shard] = b
}

// Overdue reports whether a shard that is to be given back since a time is given back although something is in flight.
func (l *Leases) Overdue(since, now time.Time) bool { return now.Sub(since) > max(l.ttl, stallAfter) }

// Release notes that a lease is being given back.
func (l *Leases) Release(shard int16, now time.Time) { l.releasing[shard] = now.Add(2 * l.ttl) }

// Released notes that leases were given back.
func (l *Leases) Released(shards []int16) {
	for _, n := range shards {
		delete(l.releasing, n)
	}
}

// Held is a shard whose lease the relay holds.
type Held struct {
	Shard   int16
	Events  int  // that it holds
	Leaving bool // it is being given back already
}

// Surplus chooses the shards that a relay has to give back, those with the fewest events first. It counts those that it is giving back
// already.
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
