// Package gaps decides which missing numbers of a sequence a reader must still look for. It does no I/O and has no clock.
package gaps

import "slices"

// Tracker remembers which numbers of a shard were read, so that the next read need not begin at the start of the table. It only saves
// work: every row that exists is unpublished, and a rescan finds rows that the tracker misses. It is not safe for concurrent use.
type Tracker interface {
	// From is the number above which the next read begins.
	From() int64
	// List returns the numbers at or below From that the next read must look for.
	List() []int64
	// Scanning reports whether the tracker does not yet know which numbers may still appear. During a scan, reads return rows that
	// earlier reads returned. begun is false before the first read of the scan.
	Scanning() (scanning, begun bool)
	// Curious reports whether the next read should list the open writers before it reads.
	Curious() bool
	// Learn records what a read found. It returns true if a row appeared that the tracker had ruled out; it has then forgotten
	// everything.
	Learn(v View) (surprised bool)
	// Forget starts a scan above floor. Everything up to floor was read.
	Forget(floor int64)
}

// Writers are the transactions that have the outbox open for writing, by their virtual IDs.
type Writers map[string]struct{}

// prepared is the prefix for prepared transactions (two-phase commit), which have no virtual ID.
const prepared = "-1/"

// AnyOf reports whether one of the transactions is still open.
func (w Writers) AnyOf(earlier Writers) bool {
	for id := range w {
		if _, ok := earlier[id]; ok || len(id) > 3 && id[:3] == prepared {
			return true
		}
	}
	return false
}

// View is what a read found.
type View struct {
	Numbers []int64 // of the rows above From, ascending: every row up to the last one was read
	Fresh   []int64 // of the rows that the relay does not hold: those of gaps and those above From, ascending
	More    bool    // the read stopped at its limit
	Last    int64   // the sequence's value, read before the writers; set if the scan had not begun
	Writers Writers // that were open before the read; nil if the read did not ask
}

// maxGaps bounds the gaps of a shard that a read looks for.
const maxGaps = 10_000

// New returns the Tracker of a relay.
func New() Tracker { return &tracker{} }

// tracker is the Tracker of a relay.
//
// A transaction takes a number before it commits, so a lower number may become visible after a higher one. The missing numbers are gaps.
// Each read looks for them in the same snapshot as for newer numbers: a snapshot that shows a later event of a key also shows the earlier
// ones. A gap is forgotten once every transaction has ended that had the outbox open for writing after the gap was seen, and a later read
// did not find the gap's row. Forget starts a scan. A scan reads from the start repeatedly, until every number that was taken when it
// began is settled in the same way.
type tracker struct {
	known   bool    // false: scanning
	floor   int64   // a scan starts above it
	begun   bool    // of a scan: last and owners are set
	last    int64   // of a scan: the sequence's value when it began
	settled int64   // no number up to here can still appear
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
		if v.Writers.AnyOf(waiting) {
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

// unexpected removes the found numbers from the gaps. It reports whether a found number was not a gap.
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

// age forgets gaps that no transaction can fill any more, and records which transactions could fill the gaps that earlier reads saw.
func (g *tracker) age(w Writers) {
	if w == nil {
		return
	}
	if len(g.older) > 0 && !w.AnyOf(g.owners) {
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
