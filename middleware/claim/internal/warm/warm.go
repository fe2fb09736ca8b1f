// Package warm runs a claim's calls on goroutines that have run such calls before. A router starts a goroutine for each message. There
// the calls would make the stack grow, copy by copy, to what a driver needs, which is more than a tenth of the claim's time.
package warm

import (
	"errors"
	"time"
)

// warmFor is for how long such a goroutine waits for another claim: at the rates that matter the next one is there at once.
const warmFor = 100 * time.Millisecond

// warmth hands work to those that wait.
var warmth = make(chan func())

// ErrExited means that the handler has ended its goroutine.
var ErrExited = errors.New("the handler called runtime.Goexit")

// Do returns what fn does, and panics as it does.
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
