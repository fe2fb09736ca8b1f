package group

import (
	"sync"
	"time"
)

const (
	// aloneLimit is how long other messages wait for one that runs alone or waits to run alone. It may wait for one of them, or never
	// end.
	aloneLimit = time.Minute
	// yield is how long other messages may enter after one has run alone, if some wait.
	yield = time.Millisecond
)

// Waiter waits at a gate. Wake must not block and must not call the gate.
type Waiter interface{ Wake() }

// Gate admits either several messages of the process or one that runs alone. Its zero value is open. It is safe for concurrent use and
// never blocks: a refused Waiter is woken when it should try again.
type Gate struct {
	mu      sync.Mutex
	in      int
	holder  Waiter // runs alone, or waits until no other message is in
	granted bool   // it runs alone
	expired bool   // other messages may enter although one runs alone
	resting bool   // no Waiter may become the holder
	turn    int    // counts holders
	timer   *time.Timer
	waiting map[Waiter]struct{}
}

// Enter admits a message, unless a message of another waiter runs alone or waits to run alone.
func (g *Gate) Enter(w Waiter) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.holder != nil && g.holder != w && !g.expired {
		g.wait(w)
		return false
	}
	g.in++
	return true
}

// Leave records that messages have left.
func (g *Gate) Leave(messages int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.in -= messages
	if g.in == 0 {
		g.wake()
	}
}

// Close keeps other messages out, and reports whether none is in.
func (g *Gate) Close(w Waiter) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.holder == nil && !g.resting {
		g.holder, g.granted, g.expired = w, false, false
		g.turn++
		turn := g.turn
		g.timer = time.AfterFunc(aloneLimit, func() { g.expire(turn) })
	}
	if g.holder != w || g.in > 0 {
		g.wait(w)
		return false
	}
	g.granted = true
	return true
}

// Open admits other messages again.
func (g *Gate) Open(w Waiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.waiting, w)
	if g.holder != w {
		return
	}
	g.timer.Stop()
	g.holder = nil
	if len(g.waiting) > 0 {
		g.rest(yield)
	}
	g.wake()
}

func (g *Gate) expire(turn int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.holder == nil || g.turn != turn {
		return
	}
	if g.granted {
		g.expired = true
	} else { // a message inside does not end
		g.holder = nil
		g.rest(aloneLimit)
	}
	g.wake()
}

func (g *Gate) rest(limit time.Duration) {
	g.resting = true
	time.AfterFunc(limit, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.resting = false
		g.wake()
	})
}

func (g *Gate) wait(w Waiter) {
	if g.waiting == nil {
		g.waiting = map[Waiter]struct{}{}
	}
	g.waiting[w] = struct{}{}
}

func (g *Gate) wake() {
	for w := range g.waiting {
		w.Wake()
	}
	clear(g.waiting)
}
