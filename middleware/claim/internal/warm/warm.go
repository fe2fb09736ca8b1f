// Package warm runs a claim's calls on goroutines that have run such calls before. A router starts a goroutine for each message,
// and on a new goroutine the stack would have to grow, copy by copy, to what a driver needs. That takes more than a tenth of the
// claim's time.
package warm

import (
	"errors"
	"time"
)

// warmFor is how long such a goroutine waits for another claim. At high rates, the next claim comes at once.
const warmFor = 100 * time.Millisecond

// warmth passes calls to waiting goroutines.
var warmth = make(chan func())

// ErrExited means that the handler has called runtime.Goexit.
var ErrExited = errors.New("the handler called runtime.Goexit")

// Do calls fn and returns its error. If fn panics, so does Do.
func Do(fn func() error) error {
	var (
		err      = ErrExited
		panicked any
		done     = make(chan struct{})
	)
	work := func() {
		defer close(done)
		defer func() { panicked = recover() }()
		err = fn()
	}
	select {
	case warmth <- work:
	default:
		go workOn(work)
	}
	<-done
	if panicked != nil {
		panic(panicked)
	}
	return err
}

func workOn(work func()) {
	idle := time.NewTimer(warmFor)
	defer idle.Stop()
	for {
		work()
		idle.Reset(warmFor)
		select {
		case work = <-warmth:
		case <-idle.C:
			return
		}
	}
}
