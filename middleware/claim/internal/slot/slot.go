// Package slot decides which events of a process may try to get a slot of their key. A key has a few slots in the whole fleet. The
// package has no clock and no locks.
package slot

import (
	"maps"
	"slices"
	"time"
)

const (
	// Window is how many of the longest waiting events may try for a slot. The others keep their place behind them.
	Window = 8
	// MaxPassed is how many later events may pass a waiting event. After that, they wait for it.
	MaxPassed = 16
	// Near is the wait between two tries of an event in the window.
	Near = 50 * time.Millisecond
	// Far is the wait of the others.
	Far = 250 * time.Millisecond
	// Full is how long a key is not tried while other processes have its slots.
	Full = 50 * time.Millisecond
	// gone is how late an event may come again and keep its place. After that, another process may have it.
	gone = 500 * time.Millisecond
	// maxIdle is the number of keys above which keys without events are dropped.
	maxIdle = 10_000
)

// Slots are the running and waiting events of one process, by key.
type Slots struct{ keys map[Key]*key }

// Key is a key of a consumer whose events share slots.
type Key struct{ Consumer, Name string }

type key struct {
	running []waiting
	full    time.Time // not tried before
	waiting []waiting // in the order of arrival
}

type waiting struct {
	event  string
	until  time.Time // if it has not come again by then, it is dropped
	passed int       // how many later events have passed it
}

// Enter reports whether the event may try for one of the slots. If so, Leave must follow. If not, wait is the delay of its
// redelivery.
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

// Leave ends an event that entered. refused means that it got no slot because other processes have them all. Then it keeps the
// first place, and wait is the delay of its redelivery.
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

// forget drops keys whose events went elsewhere, if there are many keys.
func (s *Slots) forget(now time.Time) {
	if len(s.keys) < maxIdle {
		return
	}
	maps.DeleteFunc(s.keys, func(_ Key, k *key) bool {
		return len(k.running) == 0 && !slices.ContainsFunc(k.waiting, func(w waiting) bool { return now.Before(w.until) })
	})
}

// Most bounds the slots of a key, because a try asks for one after the other.
const Most = 100
