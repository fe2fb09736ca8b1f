package outbox

import "slices"

// memory is what a relay remembers of the numbers that it has read in a shard, so that the next read need not begin at the
// table's start. All of it is a hint: a row that exists is unpublished, and what memory leaves out a rescan finds.
//
// A number is taken before its transaction commits, so a lower one may become visible after a higher one. Those missing
// numbers are holes, and each read looks at them too, in the same snapshot: whoever sees a later event of a key sees the
// earlier ones. A hole is forgotten once every transaction that had the outbox open for writing after the hole was seen
// has ended, and a later read still did not find it. After forgetting everything comes a scan, which always reads from the
// start, until the same is known of all numbers that were taken when it began.
//
// It does no I/O. It is not safe for concurrent use.
type memory struct {
	blind bool // forgets all holes: what a test uses to show what they are for

	known   bool    // false: scanning
	floor   int64   // a scan starts above it
	begun   bool    // of a scan: last and owners are there
	last    int64   // of a scan: the sequence's value when it began
	settled int64   // numbers up to here can no longer appear
	hi      int64   // the highest number read
	owners  writers // who may still fill the older holes, or bring what the scan waits for
	older   []int64 // holes whose possible owners are known
	newer   []int64 // holes seen since
}

// writers are the transactions that have the outbox open for writing, by their virtual IDs.
type writers map[string]struct{}

// prepared stands for transactions of a two-phase commit, which have no virtual ID.
const prepared = "-1/"

// anyOf reports whether one of the transactions is still there.
func (w writers) anyOf(earlier writers) bool {
	for id := range w {
		if _, ok := earlier[id]; ok || len(id) > 3 && id[:3] == prepared {
			return true
		}
	}
	return false
}

// maxHoles bounds the holes of a shard that are looked at in each read.
const maxHoles = 10_000

// forget starts a scan above floor, below which everything was read.
func (m *memory) forget(floor int64) {
	*m = memory{blind: m.blind, floor: floor}
}

// from is the number above which the next read begins.
func (m *memory) from() int64 {
	if !m.known {
		return m.floor
	}
	return m.hi
}

// holes lists the numbers at or below from that the next read has to look at.
func (m *memory) holes() []int64 {
	if !m.known {
		return nil
	}
	return slices.Concat(m.older, m.newer)
}

// curious reports whether the next read should be preceded by a look at the writers.
func (m *memory) curious() bool {
	return !m.known || len(m.older)+len(m.newer) > 0
}

// seen is what a read has found.
type seen struct {
	numbers []int64 // of all rows that were returned, ascending
	fresh   []int64 // of those that the relay does not hold already, ascending
	more    bool    // the read stopped at its limit
	last    int64   // the sequence's value, read before the writers; for a scan that has not begun
	writers writers // who was there before the read; nil when it was not asked
}

// learn draws the conclusions from a read. It reports whether memory was wrong and is now forgotten.
func (m *memory) learn(s seen) (surprised bool) {
	end := int64(0)
	if len(s.numbers) > 0 {
		end = s.numbers[len(s.numbers)-1]
	}
	if m.blind {
		m.known, m.hi = true, max(m.hi, end)
		return false
	}
	if !m.known {
		if s.writers == nil {
			return false
		}
		waiting := m.owners
		if !m.begun {
			m.begun, m.last, m.owners = true, s.last, s.writers
			waiting = s.writers
		}
		if s.writers.anyOf(waiting) {
			return false
		}
		m.known, m.settled, m.hi, m.owners = true, m.last, max(m.last, m.floor), nil
		if s.more && end < m.hi {
			m.hi = max(end, m.floor)
		}
	} else {
		if m.unexpected(s.fresh) {
			m.forget(0)
			return true
		}
		m.age(s.writers)
	}
	m.advance(s.numbers)
	return false
}

// unexpected takes what was found out of the holes, and reports whether there was more.
func (m *memory) unexpected(fresh []int64) bool {
	below, _ := slices.BinarySearch(fresh, m.hi+1)
	if below == 0 {
		return false
	}
	found := make(map[int64]bool, below)
	for _, n := range fresh[:below] {
		found[n] = true
	}
	before := len(m.older) + len(m.newer)
	isFound := func(n int64) bool { return found[n] }
	m.older, m.newer = slices.DeleteFunc(m.older, isFound), slices.DeleteFunc(m.newer, isFound)
	return before-len(m.older)-len(m.newer) < below
}

// age forgets holes that nobody can fill any more, and notes who could fill those that the reads before this one saw.
func (m *memory) age(w writers) {
	if w == nil {
		return
	}
	if len(m.older) > 0 && !w.anyOf(m.owners) {
		m.older = nil
	}
	if len(m.older) == 0 && len(m.newer) > 0 {
		m.older, m.newer, m.owners = m.newer, nil, w
	}
}

func (m *memory) advance(numbers []int64) {
	for _, n := range numbers {
		if n <= m.hi {
			continue
		}
		first := max(m.hi, m.settled) + 1
		if int64(len(m.older)+len(m.newer))+n-first > maxHoles {
			floor := m.hi
			for _, h := range m.holes() {
				floor = min(floor, h-1)
			}
			m.forget(floor)
			return
		}
		for h := first; h < n; h++ {
			m.newer = append(m.newer, h)
		}
		m.hi = n
	}
}
