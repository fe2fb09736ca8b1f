// Package bucket limits how often each user may do something: a token bucket for each, in memory.
package bucket

import (
	"sync"
	"time"
)

// maxUsers bounds the number of buckets. Above it, full buckets are dropped.
const maxUsers = 10_000

// Buckets are the buckets of all users. They are safe for concurrent use.
type Buckets struct {
	burst    int           // tokens of a full bucket
	interval time.Duration // a bucket gets one token in each

	mu   sync.Mutex
	full map[string]time.Time // user -> when the bucket is full again
}

// New returns Buckets with which each user may do something burst times at once, and then once every interval.
func New(burst int, interval time.Duration) *Buckets {
	return &Buckets{burst: burst, interval: interval, full: map[string]time.Time{}}
}

// Take takes a token of the user's bucket. If there is none, it returns how long to wait for one.
func (b *Buckets) Take(now time.Time, user string) (wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	full := b.full[user]
	if full.Before(now) {
		full = now
	}
	full = full.Add(b.interval)
	if wait = full.Sub(now) - time.Duration(b.burst)*b.interval; wait > 0 {
		return wait
	}
	if len(b.full) >= maxUsers {
		for other, at := range b.full {
			if at.Before(now) {
				delete(b.full, other)
			}
		}
	}
	b.full[user] = full
	return 0
}
