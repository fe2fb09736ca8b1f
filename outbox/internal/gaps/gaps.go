// Package gaps decides which numbers of a sequence a reader still has to look for. It does no I/O and has no clock.
package gaps

import "slices"

// Tracker remembers which numbers of a shard were read, so that the next read need not begin at the table's start. All
// of it is a hint: a row that exists is unpublished, and a rescan finds what the tracker leaves out. It is used by one
// goroutine.
type Tracker interface {
	// From is the number above which the next read begins.
	From() int64
	// List returns the numbers at or below From that the next read looks at too.
	List() []int64
	// Scanning reports whether the tracker does not yet know which numbers can still appear. Until it does, reads return
	// again what they have returned before. begun is false before the first read of the scan.
	Scanning() (scanning, begun bool)
	// Curious reports whether the next read should list the open writers before it reads.
	Curious() bool
	// Learn draws the conclusions from a read. It reports whether a row appeared that the tracker had excluded; then it has
	// forgotten everything.
	Learn(v View) (surprised bool)
	// Forget starts a scan above floor, below which everything was read.
	Forget(floor int64)
}

// Writers are the transactions that have the outbox open for writing, by their virtual IDs.
type Writers map[string]struct{}

// prepared stands for transactions of a two-phase commit, which have no virtual ID.
const prepared = "-1/"

// anyOf reports whether one of the transactions is still open.
func (w Writers) anyOf(earlier Writers) bool {
	for id := range w {
		if _, ok := earlier[id]; ok || len(id) > 3 && id[:3] == prepared {
			return true
		}
	}
	return false
}

// View is what a read found.
type View struct {
	Numbers []int64 // of all rows returned, ascending
	Fresh   []int64 // of those that the relay does not hold, ascending
	More    bool    // the read stopped at its limit
	Last    int64   // the sequence's value, read before the writers; for a scan that has not begun
	Writers Writers // that were open before the read; nil when the read did not ask
}

// maxGaps bounds the gaps of a shard that each read looks at.
const maxGaps = 10_000

// New returns the Tracker of a relay.
func New() Tracker { return &tracker{} }

// tracker is the Tracker of a relay.
//
// A transaction takes a number before it commits, so a lower number may become visible after a higher one. The missing
// numbers are gaps. Each read looks at them in the same snapshot as at newer numbers: a snapshot that shows a later event of
// a key shows the earlier ones. A gap is forgotten once every transaction that had the outbox open for writing after the gap
// was seen has ended, and a later read did not find it. After Forget comes a scan. It reads from the start, again and again,
// until the same is known of every number that was taken when it began.
type tracker struct {
	known   bool    // false: scanning
	floor   int64   // a scan starts above it
	begun   bool    // of a scan: last and owners are set
	last    int64   // of a scan: the sequence's value when it began
	settled int64   // numbers up to here can no longer appear
	hi      int64   // the highest number read
	owners  Writers // that may still fill the older gaps, or that the scan waits for
	older   []int64 // gaps whose possible owners are known
	newer   []int64 // gaps seen since
}

func (g *tracker) Forget(floor int64) { *g = tracker{floor: floor} }

func (g *tracker) Scanning() (scanning, begun bool) { return !g.known, g.begun }

func (g *tracker) From() int64 {
	if !g.known {
		return g.floor
	}
	return g.hi
}

func (g *tracker) List() []int64 {
	if !g.known {
		return nil
	}
	return slices.Concat(g.older, g.newer)
}

func (g *tracker) Curious() bool { return !g.known || len(g.older)+len(g.newer) > 0 }

func (g *tracker) Learn(v View) (surprised bool) {
	end := int64(0)
	if len(v.Numbers) > 0 {
		end = v.Numbers[len(v.Numbers)-1]
	}
	if !g.known {
		if v.Writers == nil {
			return false
		}
		waiting := g.owners
		if !g.begun {
			g.begun, g.last, g.owners = true, v.Last, v.Writers
			waiting = v.Writers
		}
		if v.Writers.anyOf(waiting) {
			return false
		}
		g.known, g.settled, g.hi, g.owners = true, g.last, max(g.last, g.floor), nil
		if v.More && end < g.hi {
			g.hi = max(end, g.floor)
		}
	} else {
		if g.unexpected(v.Fresh) {
			g.Forget(0)
			return true
		}
		g.age(v.Writers)
	}
	g.advance(v.Numbers)
	return false
}

// unexpected takes what was found out of the gaps, and reports whether there was more.
func (g *tracker) unexpected(fresh []int64) bool {
	below, _ := slices.BinarySearch(fresh, g.hi+1)
	if below == 0 {
		return false
	}
	found := make(map[int64]bool, below)
	for _, n := range fresh[:below] {
		found[n] = true
	}
	before := len(g.older) + len(g.newer)
	isFound := func(n int64) bool { return found[n] }
	g.older, g.newer = slices.DeleteFunc(g.older, isFound), slices.DeleteFunc(g.newer, isFound)
	return before-len(g.older)-len(g.newer) < below
}

// age forgets gaps that nobody can fill any more, and records which transactions could fill those that earlier reads saw.
func (g *tracker) age(w Writers) {
	if w == nil {
		return
	}
	if len(g.older) > 0 && !w.anyOf(g.owners) {
		g.older = nil
	}
	if len(g.older) == 0 && len(g.newer) > 0 {
		g.older, g.newer, g.owners = g.newer, nil, w
	}
}

func (g *tracker) advance(numbers []int64) {
	for _, n := range numbers {
		if n <= g.hi {
			continue
		}
		first := max(g.hi, g.settled) + 1
		if int64(len(g.older)+len(g.newer))+n-first > maxGaps {
			floor := g.hi
			for _, h := range g.List() {
				floor = min(floor, h-1)
			}
			g.Forget(floor)
			return
		}
		for h := first; h < n; h++ {
			g.newer = append(g.newer, h)
		}
		g.hi = n
	}
}
