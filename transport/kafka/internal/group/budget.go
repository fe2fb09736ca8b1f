package group

import (
	"math"
	"slices"
	"sync"
	"time"
)

const (
	// fetchParts is which part of a budget one fetch request may bring. The last quarter of the budget is for what is on its way.
	fetchParts = 32
	// mostFetchBytes bounds what one fetch request brings of one partition.
	mostFetchBytes = 1 << 20
	// grantTime is how long room is kept for a partition that may read again. Most partitions that have something to read get it in time.
	grantTime = time.Second
	// stuckAfter is how long the partitions that fill the budget may finish nothing. Then another one that holds nothing may read.
	stuckAfter = 10 * time.Second
	// recordBytes is what a record takes in memory beside its key, value and headers.
	recordBytes = 512
)

// Budget bounds the bytes of the records that all partitions of a transport hold. Each partition may hold its share. While all of them
// together hold too much, they stop, and read again in the order in which they have stopped. It is safe for concurrent use and never
// blocks: a partition is woken when it may read again.
type Budget struct {
	limit   int // from here on partitions stop
	request int // what a fetch request brings, if one batch is not larger
	fetch   int // what it brings of one partition

	mu       sync.Mutex
	accounts map[reading]*account
	held     int // by all accounts, with what is kept for those that may read again
	queue    []*account
	moved    time.Time // when something was last released, or a partition was admitted
}

// reading is a partition that is read. Its methods must not call the budget.
type reading interface {
	Waiter
	flow(stop bool)
}

// account is what one partition holds.
type account struct {
	waiter  Waiter
	bytes   int
	reading bool
	granted time.Time // a fetch is kept for it since then; zero: none is
}

// NewBudget returns a budget of that many bytes.
func NewBudget(bytes int) *Budget {
	request := min(bytes/fetchParts, math.MaxInt32)
	return &Budget{limit: bytes / 4 * 3, request: request, fetch: min(request, mostFetchBytes), accounts: map[reading]*account{}}
}

// Enter adds a partition that holds nothing.
func (b *Budget) Enter(w reading, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.accounts) == 0 {
		b.moved = now
	}
	b.accounts[w] = &account{waiter: w, reading: true}
}

// Leave removes a partition with what it holds.
func (b *Budget) Leave(w reading, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[w]
	b.hold(a, 0, now)
	b.spend(a)
	b.unqueue(a)
	delete(b.accounts, w)
	b.admit(now)
}

// Reads records how many bytes the partition holds, and reports whether it may read on. If the answer may change although nothing wakes
// the partition, again says when to ask.
func (b *Budget) Reads(w reading, bytes int, now time.Time) (reads bool, again time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[w]
	b.hold(a, bytes, now)
	share := b.share()
	switch {
	case a.reading && bytes < share && (b.held <= b.limit || !a.granted.IsZero()):
	case bytes < share/2 || bytes < share && a.reading:
		a.reading = false
		if !slices.Contains(b.queue, a) {
			b.queue = append(b.queue, a)
		}
	default:
		a.reading = false
		b.unqueue(a)
	}
	b.admit(now)
	if !a.granted.IsZero() || !a.reading && bytes < share {
		again = now.Add(grantTime)
	}
	return a.reading, again
}

// share returns from how many bytes on one partition stops. A fetch that is on its way still fits, if that leaves enough.
func (b *Budget) share() int {
	share := b.limit / len(b.accounts)
	return max(share-b.fetch, share/2)
}

// hold records what the account holds.
func (b *Budget) hold(a *account, bytes int, now time.Time) {
	if bytes < a.bytes {
		b.moved = now
	}
	if bytes > a.bytes || now.Sub(a.granted) >= grantTime {
		b.spend(a)
	}
	within := b.held <= b.limit
	b.held += bytes - a.bytes
	a.bytes = bytes
	if within && b.held > b.limit {
		for w, other := range b.accounts {
			if other.reading {
				w.flow(true) // now: it might come too late to its turn
				w.Wake()
			}
		}
	}
}

// spend ends the keeping of room for the account.
func (b *Budget) spend(a *account) {
	if !a.granted.IsZero() {
		a.granted = time.Time{}
		b.held -= b.fetch
	}
}

func (b *Budget) unqueue(a *account) {
	b.queue = slices.DeleteFunc(b.queue, func(other *account) bool { return other == a })
}

// admit lets partitions read again while there is room. If there is none and nothing moves, it lets in one that holds nothing: handlers
// that hang must not stop those of other partitions.
func (b *Budget) admit(now time.Time) {
	for len(b.queue) > 0 && b.held+b.fetch <= b.limit {
		b.grant(b.queue[0], now)
	}
	if now.Sub(b.moved) < stuckAfter {
		return
	}
	if i := slices.IndexFunc(b.queue, func(a *account) bool { return a.bytes == 0 }); i >= 0 {
		b.grant(b.queue[i], now)
	}
}

func (b *Budget) grant(a *account, now time.Time) {
	b.unqueue(a)
	a.reading, a.granted, b.moved = true, now, now
	b.held += b.fetch
	a.waiter.Wake()
}
