// Package claimtest is the conformance suite for claim stores. It tests what claim.Store promises.
//
//	func TestConformance(t *testing.T) { claimtest.Run(t, newFixture) }
package claimtest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
)

// Fixture is a store, and an effect for handlers that can be counted.
type Fixture struct {
	// Store is the store under test. It must be empty.
	Store claim.Store

	// Effect makes the event's effect happen once. ctx is the context of fn. It may be called concurrently.
	Effect func(ctx context.Context, eventID string) error

	// Effects returns how often each event's effect has happened.
	Effects func() map[string]int

	// Outputs returns for each staged message, by its UUID, how often it was sent or is certain to be sent.
	Outputs func() map[string]int

	// Transactional says that a failed handler leaves no effect.
	Transactional bool

	// Events is the number of events in the race, each delivered twice. Default: 10,000.
	Events int
}

// patience bounds each wait of the suite.
const patience = time.Minute

// Run runs the suite. Each test gets its own fixture. The tests run in parallel, except the race.
func Run(t *testing.T, newFixture func(t *testing.T) Fixture) {
	for name, test := range map[string]func(*testing.T, Fixture){
		"the second is refused while the first holds the claim": secondIsRefused,
		"the second is told that the first has completed":       secondIsTold,
		"the second runs after the first has failed":            secondRuns,
		"a panic leaves no claim":                               panicReleases,
		"an ended context claims nothing":                       endedContext,
		"a handler sees the end of its context":                 contextEnds,
		"consumers and events are independent":                  keysAreApart,
		"a handler's own error is its own":                      errorsPass,
		"outputs leave once, of what is completed":              outputsLeave,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newFixture(t))
		})
	}
	t.Run("a race of duplicates has one effect each", func(t *testing.T) {
		f := newFixture(t)
		effects := Race(t, f)
		for id, n := range effects {
			require.Equal(t, 1, n, "event %s", id)
		}
		require.Len(t, effects, f.events())
	})
}

func (f Fixture) events() int {
	if f.Events == 0 {
		return 10_000
	}
	return f.Events
}

// effect returns a handler that only makes the effect happen.
func (f Fixture) effect(k claim.Key) func(context.Context) error {
	return func(ctx context.Context) error { return f.Effect(ctx, k.EventID) }
}

// hold claims the key in the background and makes its effect happen. end makes fn return with the error, and returns Do's error.
func (f Fixture) hold(t *testing.T, k claim.Key) (end func(error) error) {
	t.Helper()
	running, fails, ended := make(chan struct{}), make(chan error, 1), make(chan error, 1)
	go func() {
		ended <- f.Store.Do(context.WithoutCancel(t.Context()), k, func(ctx context.Context) error {
			err := f.Effect(ctx, k.EventID)
			close(running)
			if err != nil {
				return err
			}
			return <-fails
		})
	}()
	// Release it if the test stops early.
	t.Cleanup(func() {
		select {
		case fails <- nil:
		default:
		}
	})
	select {
	case <-running:
	case err := <-ended:
		require.FailNow(t, "the claim was refused", "%v", err)
	case <-time.After(patience):
		require.FailNow(t, "the handler was not called")
	}
	return func(err error) error {
		fails <- err
		return <-ended
	}
}

// never returns a handler that must not be called.
func never(t *testing.T) func(context.Context) error {
	return func(context.Context) error {
		require.Fail(t, "the handler was called")
		return nil
	}
}
