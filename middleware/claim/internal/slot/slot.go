// Package slot decides which events of a process may try to get one of their key's slots, of which the fleet has few. It has no clock and
// no locks.
package slot

import (
	"maps"
	"slices"
	"time"
)

const (
	// Window is how many of the events that wait longest may try for a slot. The others keep their place behind them.
	Window = 8
	// MaxPassed is how many may get ahead of an event that came before them. Then they wait for it.
	MaxPassed = 16
	// Near is how long one of these waits between two tries.
	Near = 50 * time.Millisecond
	// Far is how long the others wait.
	Far = 250 * time.Millisecond
	// Full is for how long a key is left alone whose slots other processes have.
	Full = 50 * time.Millisecond
	// gone is how much later than it was told an event may come again and keep its place: another process may have got it.
	gone = 500 * time.Millisecond
	// maxIdle is how many keys are remembered of which no event runs.
	maxIdle = 10_000
)

// Slots are the events of one process that run or wait, by key.
type Slots struct{ keys map[Key]*key }

// Key is what has slots: a key of a consumer.
type Key struct{ Consumer, Name string }

type key struct {
	running []waiting
	full    time.Time // no try before
	waiting []waiting // the one that came first is first
}

type waiting struct {
	event  string
	until  time.Time // when it has not come again by then, it does not
	passed int       // how many that came later are ahead of it
}

// Enter reports whether the event may try for one of so many slots, and in which time it may come again otherwise. Leave must follow if
// it may.
func (s *Slots) Enter(of Key, event string, slots int, now time.Time) (wait time.Duration, ok bool) {
	if s.keys == nil {
		s.keys = map[Key]*key{}
	}
	k := s.keys[of]
	if k == nil {
		s.forget(now)
		k = &key{}
		s.keys[of] = k
	}
	k.waiting = slices.DeleteFunc(k.waiting, func(w waiting) bool { return w.event != event && now.After(w.until) })
	place := slices.IndexFunc(k.waiting, func(w waiting) bool { return w.event == event })
	if place < 0 {
		place = len(k.waiting)
		k.waiting = append(k.waiting, waiting{event: event})
	}
	near := place < slots-len(k.running)+Window
	passed := slices.ContainsFunc(k.waiting[:place], func(w waiting) bool { return w.passed >= MaxPassed })
	if near && !passed && len(k.running) < slots && !now.Before(k.full) {
		for i := range place {
			k.waiting[i].passed++
		}
		k.running = append(k.running, k.waiting[place])
		k.waiting = slices.Delete(k.waiting, place, place+1)
		return 0, true
	}
	wait = Far
	if near {
		wait = Near
	}
	k.waiting[place].until = now.Add(wait + gone)
	return wait, false
}

// Leave notes that an event that entered is over. refused says that it got no slot, because other processes have them all: it keeps the
// first place. It returns in which time that one may come again.
func (s *Slots) Leave(of Key, event string, refused bool, now time.Time) (wait time.Duration) {
	k := s.keys[of]
	i := slices.IndexFunc(k.running, func(w waiting) bool { return w.event == event })
	w := k.running[i]
	k.running = slices.Delete(k.running, i, i+1)
	if refused {
		k.full, w.until = now.Add(Full), now.Add(Near+gone)
		k.waiting = slices.Insert(k.waiting, 0, w)
		return Near
	}
	if len(k.running) == 0 && len(k.waiting) == 0 {
		delete(s.keys, of)
	}
	return 0
}

// forget drops keys whose events went elsewhere, when there are many.
func (s *Slots) forget(now time.Time) {
	if len(s.keys) < maxIdle {
		return
	}
	maps.DeleteFunc(s.keys, func(_ Key, k *key) bool {
		return len(k.running) == 0 && !slices.ContainsFunc(k.waiting, func(w waiting) bool { return now.Before(w.until) })
	})
}
