package group

import (
	"sync"
	"time"
)

const (
	// aloneLimit is how long others wait for a message that runs alone, or waits for that. It may wait for one of them, or never end.
	aloneLimit = time.Minute
	// yield is how long others may enter after a message has run alone, if some wait.
	yield = time.Millisecond
)

// Waiter is who waits at a gate. Wake must not block, and must not call the gate.
type Waiter interface{ Wake() }

// Gate lets messages into the process together, or one alone. Its zero value is open. It is safe for concurrent use, and never waits:
// who is refused is woken when it is worth another try.
type Gate struct {
	mu      sync.Mutex
	in      int
	holder  Waiter // runs alone, or waits until nothing else is in
	granted bool   // it runs alone
	expired bool   // others may enter beside it
	resting bool   // nobody becomes the holder
	turn    int    // counts holders
	timer   *time.Timer
	waiting map[Waiter]struct{}
}

// Enter lets a message in, unless one of another waiter runs alone, or waits for that.
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

// Leave lets messages out.
func (g *Gate) Leave(messages int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.in -= messages
	if g.in == 0 {
		g.wake()
	}
}

// Close keeps others out, and tells whether nothing is in.
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

// Open lets others in again.
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
	} else { // something in it does not end
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
