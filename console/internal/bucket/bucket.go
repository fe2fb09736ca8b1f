// Package bucket limits how often each user may do something: a token bucket for each, in memory.
package bucket

import (
	"sync"
	"time"
)

// maxUsers bounds how many buckets there are. Beyond it those are dropped that are full again.
const maxUsers = 10_000

// Buckets are the buckets of all users. They are safe for concurrent use.
type Buckets struct {
	burst int           // tokens of a full bucket
	every time.Duration // how long a token takes to come back

	mu   sync.Mutex
	full map[string]time.Time // user -> when the bucket is full again
}

// New returns Buckets that let each user do something so many times at once, and then once every so long.
func New(burst int, every time.Duration) *Buckets {
	return &Buckets{burst: burst, every: every, full: map[string]time.Time{}}
}

// Take takes a token of the user's bucket. If there is none, it returns how long to wait for one.
func (b *Buckets) Take(now time.Time, user string) (wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	full := b.full[user]
	if full.Before(now) {
		full = now
	}
	full = full.Add(b.every)
	if wait = full.Sub(now) - time.Duration(b.burst)*b.every; wait > 0 {
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
