// Package lane decides which record of a partition is delivered next, and up to where the records are done. It does no I/O
// and has no clock.
package lane

import (
	"container/heap"
	"slices"
	"time"
)

// Lane decides what becomes of the records of one partition: which one is delivered next, and up to where they are
// done. It is a function of what was called and of the times given to it: it has no lock, no clock and no goroutine. Its
// owner guards it.
//
// Every record that was pushed and is not released is in the window, in one of the states.
type Lane struct {
	ordered bool
	bound   int  // how many records the window holds before it is full
	stopped bool // of full

	window  []*Entry // in offset order, up to the first one that is not done
	bytes   int      // of the window
	taken   int      // entries of the window in the state inFlight
	ready   []*Entry
	delayed schedule
	keys    map[string][]*Entry // what waits behind the first of its key; present while there is a first

	assignment int
	carried    map[int64]*Entry // of earlier assignments, by offset: what is known of records that may come again
}

// state is where an entry of a lane is.
type state int

const (
	fresh   state = iota // not pushed yet
	waiting              // behind an earlier one of its key
	ready
	inFlight // taken, and neither done nor to be retried
	delayed  // until it is due
	done     // and not released yet, unless nothing before it in the partition is missing
)

// Entry is one record of a partition.
type Entry struct {
	Offset   int64
	Key      string
	Bytes    int
	Identity string // with At it tells the record from another one at the same offset, of a topic that was made anew
	At       time.Time

	Attempts int // deliveries so far
	Failures int // of them, those that count against the record
	Value    any // the owner's

	state      state
	assignment int       // the one that it was pushed in
	free       bool      // of its key's order
	due        time.Time // when delayed
}

// New returns a lane without records. An ordered one delivers the records of a key one after another. It is full with
// bound records: one at the head that is retried for long, or a slow handler, must not make the process read the rest of
// the partition.
func New(ordered bool, bound int) *Lane {
	return &Lane{ordered: ordered, bound: bound, keys: map[string][]*Entry{}, carried: map[int64]*Entry{}}
}

// Full tells whether no more records should be read. What is on its way may still be pushed. It changes its mind only
// when half of the room is free again, so that reading does not stop and go for each record.
func (l *Lane) Full() bool {
	switch {
	case len(l.window) >= l.bound:
		l.stopped = true
	case len(l.window) <= l.bound/2:
		l.stopped = false
	}
	return l.stopped
}

// Empty tells whether everything that was pushed is released.
func (l *Lane) Empty() bool { return len(l.window) == 0 }

// InFlight is how many records are taken, and neither done nor to be retried.
func (l *Lane) InFlight() int { return l.taken }

// Bytes is what the records take that were pushed and are not released.
func (l *Lane) Bytes() int { return l.bytes }

// Push adds a record behind all others of the partition, and returns what it releases: the record itself, when a handler
// of an earlier assignment has done it meanwhile. What such a handler still has is not delivered a second time.
func (l *Lane) Push(e *Entry) []*Entry {
	if before, ok := l.carried[e.Offset]; ok {
		delete(l.carried, e.Offset)
		if before.Identity == e.Identity && before.At.Equal(e.At) {
			e = before
		}
	}
	e.assignment = l.assignment
	e.free = e.free || !l.ordered || e.Key == ""
	l.window = append(l.window, e)
	l.bytes += e.Bytes
	behind, busy := l.keys[e.Key]
	switch {
	case e.state == done:
		return l.release()
	case e.state == inFlight:
		l.taken++
		e.free = e.free || busy // an earlier one of its key let it pass, which cannot be undone
	case !e.free && busy:
		e.state = waiting
		l.keys[e.Key] = append(behind, e)
		return nil
	case e.state == delayed:
		heap.Push(&l.delayed, e)
	default:
		l.makeReady(e)
	}
	if !e.free {
		l.keys[e.Key] = nil
	}
	return nil
}

// Waits tells whether a record is to be delivered at now. Otherwise due is when one will be, if that is known.
func (l *Lane) Waits(now time.Time) (ready bool, due time.Time) {
	for len(l.delayed) > 0 && !l.delayed[0].due.After(now) {
		l.makeReady(heap.Pop(&l.delayed).(*Entry))
	}
	if len(l.ready) == 0 && len(l.delayed) > 0 {
		due = l.delayed[0].due
	}
	return len(l.ready) > 0, due
}

// Take returns the next record to deliver at now, and counts the attempt. Without one it returns nil.
func (l *Lane) Take(now time.Time) *Entry {
	if ready, _ := l.Waits(now); !ready {
		return nil
	}
	e := l.ready[0]
	l.ready[0] = nil
	l.ready = l.ready[1:]
	e.state = inFlight
	e.Attempts++
	l.taken++
	return e
}

// PutBack returns a taken record that nobody has seen: to the front, the attempt not counted.
func (l *Lane) PutBack(e *Entry) {
	e.Attempts--
	if e.assignment != l.assignment {
		e.state, e.due = delayed, time.Time{}
		return
	}
	l.taken--
	e.state = ready
	l.ready = slices.Insert(l.ready, 0, e)
}

// Retry brings a taken record back at due. Those of its key behind it wait for it.
func (l *Lane) Retry(e *Entry, due time.Time) {
	e.state, e.due = delayed, due
	if e.assignment == l.assignment {
		l.taken--
		heap.Push(&l.delayed, e)
	}
}

// Handled lets the next one of a taken record's key go on before the record is done.
func (l *Lane) Handled(e *Entry) {
	if e.free || e.state != inFlight {
		return
	}
	e.free = true
	if e.assignment == l.assignment {
		l.next(e.Key)
	}
}

// Done ends a taken record. It returns what is released by that: in offset order, and without a gap to what was
// released before.
func (l *Lane) Done(e *Entry) []*Entry {
	e.state = done
	if e.assignment != l.assignment {
		return nil
	}
	l.taken--
	if !e.free {
		l.next(e.Key)
	}
	return l.release()
}

// release removes what is done from the window's head.
func (l *Lane) release() []*Entry {
	n := 0
	for n < len(l.window) && l.window[n].state == done {
		l.bytes -= l.window[n].Bytes
		n++
	}
	released := l.window[:n:n]
	l.window = l.window[n:]
	return released
}

// Suspend ends an assignment: what was never delivered is forgotten. What is known of the rest is kept for a later one, which may
// read the same records again: that handlers have some of them, that some are done, and the attempts of the others.
func (l *Lane) Suspend() {
	for _, e := range l.window {
		if e.Attempts == 0 {
			continue
		}
		if e.state != inFlight && e.state != done {
			e.state, e.free = delayed, false
		}
		l.carried[e.Offset] = e
	}
	l.assignment++
	l.window, l.bytes, l.taken, l.ready, l.delayed, l.stopped = nil, 0, 0, nil, nil, false
	clear(l.keys)
}

// Resume begins an assignment that reads from offset on: what is below is done.
func (l *Lane) Resume(offset int64) {
	for at := range l.carried {
		if at < offset {
			delete(l.carried, at)
		}
	}
}

// next makes the next one of the key ready.
func (l *Lane) next(key string) {
	behind := l.keys[key]
	if len(behind) == 0 {
		delete(l.keys, key)
		return
	}
	l.makeReady(behind[0])
	behind[0] = nil
	l.keys[key] = behind[1:]
}

func (l *Lane) makeReady(e *Entry) {
	e.state = ready
	l.ready = append(l.ready, e)
}

// schedule is a heap of entries by the time at which they are due.
type schedule []*Entry

func (d schedule) Len() int           { return len(d) }
func (d schedule) Less(i, j int) bool { return d[i].due.Before(d[j].due) }
func (d schedule) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *schedule) Push(x any)        { *d = append(*d, x.(*Entry)) }

func (d *schedule) Pop() any {
	last := len(*d) - 1
	e := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	return e
}
