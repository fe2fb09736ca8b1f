package kafka

import (
	"container/heap"
	"slices"
	"time"
)

// lane decides what becomes of the records of one partition: which one is delivered next, and up to where they are
// done. It is a function of what was called and of the times given to it: it has no lock, no clock and no goroutine. Its
// owner guards it.
//
// Every record that was pushed and is not released is in the window, in one of the states of entryState.
type lane struct {
	ordered bool
	bounds  bounds
	stopped bool // of full

	window  []*entry // in offset order, up to the first one that is not done
	bytes   int      // of the window
	taken   int      // entries of the window in the state flying
	ready   []*entry
	delayed delays
	keys    map[string][]*entry // what waits behind the first of its key; present while there is a first

	claim   int
	carried map[int64]*entry // of earlier claims, by offset: what is known of records that may come again
}

// bounds is how much of a partition is in memory: a record at the head that is retried for long, or a slow handler, must
// not make the process read the rest of the partition.
type bounds struct{ records, bytes int }

// entryState is where an entry of a lane is.
type entryState int

const (
	fresh   entryState = iota // not pushed yet
	waiting                   // behind an earlier one of its key
	ready
	flying  // taken, and neither done nor to be retried
	delayed // until it is due
	done    // and not released yet, unless nothing before it in the partition is missing
)

// entry is one record of a partition.
type entry struct {
	offset   int64
	key      string
	bytes    int
	identity string // tells it from another record at the same offset, of a topic that was made anew

	state    entryState
	claim    int       // the one that it was pushed in
	free     bool      // of its key's order
	attempts int       // deliveries so far
	failures int       // of them, those that count against the record
	due      time.Time // when delayed

	value   any       // the owner's
	outputs []*output // what its handler has published, when that goes into a transaction
}

func newLane(ordered bool, b bounds) *lane {
	return &lane{ordered: ordered, bounds: b, keys: map[string][]*entry{}, carried: map[int64]*entry{}}
}

// full tells whether no more records should be read. What is on its way may still be pushed. It changes its mind only
// when half of the room is free again, so that reading does not stop and go for each record.
func (l *lane) full() bool {
	switch {
	case len(l.window) >= l.bounds.records || l.bytes >= l.bounds.bytes:
		l.stopped = true
	case len(l.window) <= l.bounds.records/2 && l.bytes <= l.bounds.bytes/2:
		l.stopped = false
	}
	return l.stopped
}

// heavy tells whether the bytes alone make it full.
func (l *lane) heavy() bool { return l.bytes >= l.bounds.bytes }

// push adds a record behind all others of the partition, and returns what it releases: the record itself, when a handler
// of an earlier claim has done it meanwhile. What such a handler still has is not delivered a second time.
func (l *lane) push(e *entry) []*entry {
	if before, ok := l.carried[e.offset]; ok {
		delete(l.carried, e.offset)
		if before.identity == e.identity {
			e = before
		}
	}
	e.claim = l.claim
	e.free = e.free || !l.ordered || e.key == ""
	l.window = append(l.window, e)
	l.bytes += e.bytes
	behind, busy := l.keys[e.key]
	switch {
	case e.state == done:
		return l.release()
	case e.state == flying:
		l.taken++
		e.free = e.free || busy // an earlier one of its key let it pass, which cannot be undone
	case !e.free && busy:
		e.state = waiting
		l.keys[e.key] = append(behind, e)
		return nil
	case e.state == delayed:
		heap.Push(&l.delayed, e)
	default:
		l.makeReady(e)
	}
	if !e.free {
		l.keys[e.key] = nil
	}
	return nil
}

// waits tells whether a record is to be delivered at now. Otherwise due is when one will be, if that is known.
func (l *lane) waits(now time.Time) (ready bool, due time.Time) {
	for len(l.delayed) > 0 && !l.delayed[0].due.After(now) {
		l.makeReady(heap.Pop(&l.delayed).(*entry))
	}
	if len(l.ready) == 0 && len(l.delayed) > 0 {
		due = l.delayed[0].due
	}
	return len(l.ready) > 0, due
}

// take returns the next record to deliver at now, and counts the attempt. Without one it returns nil.
func (l *lane) take(now time.Time) *entry {
	if ready, _ := l.waits(now); !ready {
		return nil
	}
	e := l.ready[0]
	l.ready[0] = nil
	l.ready = l.ready[1:]
	e.state = flying
	e.attempts++
	l.taken++
	return e
}

// putBack returns a taken record that nobody has seen: to the front, the attempt not counted.
func (l *lane) putBack(e *entry) {
	e.attempts--
	if e.claim != l.claim {
		e.state, e.due = delayed, time.Time{}
		return
	}
	l.taken--
	e.state = ready
	l.ready = slices.Insert(l.ready, 0, e)
}

// retry brings a taken record back at due. Those of its key behind it wait for it.
func (l *lane) retry(e *entry, due time.Time) {
	e.state, e.due = delayed, due
	if e.claim == l.claim {
		l.taken--
		heap.Push(&l.delayed, e)
	}
}

// handled lets the next one of a taken record's key go on before the record is done.
func (l *lane) handled(e *entry) {
	if e.free || e.state != flying {
		return
	}
	e.free = true
	if e.claim == l.claim {
		l.next(e.key)
	}
}

// done ends a taken record. It returns what is released by that: in offset order, and without a gap to what was
// released before.
func (l *lane) done(e *entry) []*entry {
	e.state = done
	if e.claim != l.claim {
		return nil
	}
	l.taken--
	if !e.free {
		l.next(e.key)
	}
	return l.release()
}

// release removes what is done from the window's head.
func (l *lane) release() []*entry {
	n := 0
	for n < len(l.window) && l.window[n].state == done {
		l.bytes -= l.window[n].bytes
		n++
	}
	released := l.window[:n:n]
	l.window = l.window[n:]
	return released
}

// suspend ends a claim: what was never delivered is forgotten. What is known of the rest is kept for a later claim, which
// may read the same records again: that handlers have some of them, that some are done, and the attempts of the others.
func (l *lane) suspend() {
	for _, e := range l.window {
		if e.attempts == 0 {
			continue
		}
		if e.state != flying && e.state != done {
			e.state, e.free = delayed, false
		}
		l.carried[e.offset] = e
	}
	l.claim++
	l.window, l.bytes, l.taken, l.ready, l.delayed, l.stopped = nil, 0, 0, nil, nil, false
	clear(l.keys)
}

// resume begins a claim that reads from offset on: what is below is done.
func (l *lane) resume(offset int64) {
	for at := range l.carried {
		if at < offset {
			delete(l.carried, at)
		}
	}
}

// next makes the next one of the key ready.
func (l *lane) next(key string) {
	behind := l.keys[key]
	if len(behind) == 0 {
		delete(l.keys, key)
		return
	}
	l.makeReady(behind[0])
	behind[0] = nil
	l.keys[key] = behind[1:]
}

func (l *lane) makeReady(e *entry) {
	e.state = ready
	l.ready = append(l.ready, e)
}

// delays is a heap of entries by the time at which they are due.
type delays []*entry

func (d delays) Len() int           { return len(d) }
func (d delays) Less(i, j int) bool { return d[i].due.Before(d[j].due) }
func (d delays) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *delays) Push(x any)        { *d = append(*d, x.(*entry)) }

func (d *delays) Pop() any {
	last := len(*d) - 1
	e := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	return e
}
