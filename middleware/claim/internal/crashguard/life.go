package crashguard

import (
	"context"
	"errors"
	"sync"
	"time"
)

// life is what messages know about their Guard's Run. The zero value is for a Guard that does not run.
type life struct {
	mu         sync.Mutex
	registered chan struct{} // nil without Run; closed once standing is known
	standing   standing
	inHand     int
	idle       chan struct{} // closed, and set to nil, when no message is in flight; created by drain
}

// standing is what a process knows about itself and the others.
type standing struct {
	run        int64 // the process's number; 0: Run does not run
	suspicious bool
	alive      map[int64]bool // the other processes that are alive; read-only
}

func (l *life) begin() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.registered != nil {
		return errors.New("it runs already")
	}
	l.registered = make(chan struct{})
	return nil
}

// end releases the messages that still wait.
func (l *life) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.standing.run == 0 {
		close(l.registered)
	}
	l.registered, l.standing = nil, standing{}
}

// stand sets the standing. The first call releases the messages that wait for it.
func (l *life) stand(s standing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.standing.run == 0 {
		close(l.registered)
	}
	l.standing = s
}

// errUnregistered means that a message waited for the registration of the process in vain.
var errUnregistered = errors.New("the process is not registered yet: does the database answer Claim.Run?")

// take counts a message until done, and returns the standing. It waits for the first standing, at most for patience.
func (l *life) take(ctx context.Context, patience time.Duration) (standing, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if waits := l.registered; waits != nil && l.standing.run == 0 {
		l.mu.Unlock()
		err := errUnregistered
		select {
		case <-waits:
			err = nil
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(patience):
		}
		l.mu.Lock()
		if err != nil {
			return standing{}, err
		}
	}
	l.inHand++
	return l.standing, nil
}

func (l *life) done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inHand--; l.inHand == 0 && l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// drain waits until no message is in flight, at most for patience, and returns the number of messages still in flight.
func (l *life) drain(patience time.Duration) int {
	l.mu.Lock()
	if l.inHand == 0 {
		l.mu.Unlock()
		return 0
	}
	if l.idle == nil {
		l.idle = make(chan struct{})
	}
	idle := l.idle
	l.mu.Unlock()
	select {
	case <-idle:
		return 0
	case <-time.After(patience):
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inHand
}
