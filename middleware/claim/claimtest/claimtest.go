// Package claimtest is the conformance suite that every claim store passes: what claim.Store promises, asked of a store
// in a test.
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

// Fixture is a store, and something for handlers to do that can be counted.
type Fixture struct {
	// Store is what is tested. It knows no event yet.
	Store claim.Store

	// Effect makes the event happen once more; ctx is that of fn. It may be called concurrently.
	Effect func(ctx context.Context, eventID string) error

	// Effects tells how often each event has happened.
	Effects func() map[string]int

	// Outputs tells how often each message that was staged has left or is certain to leave, by its UUID.
	Outputs func() map[string]int

	// Transactional says that the effects of a handler that fails have not happened.
	Transactional bool

	// Events is how many events take part in a race, each of them delivered twice. Default: 10,000.
	Events int
}

// patience bounds every wait of the suite.
const patience = time.Minute

// Run runs the suite. Every test has a fixture of its own, and they run in parallel, except for the race.
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

// effect is a handler that does nothing else.
func (f Fixture) effect(k claim.Key) func(context.Context) error {
	return func(ctx context.Context) error { return f.Effect(ctx, k.EventID) }
}

// hold claims the key in the background, and makes its effect; end makes fn return and returns what Do did.
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
	// A test that stops early must not leave it.
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

// never is a handler that must not be called.
func never(t *testing.T) func(context.Context) error {
	return func(context.Context) error {
		require.Fail(t, "the handler was called")
		return nil
	}
}
