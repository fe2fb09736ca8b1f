package claimtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
)

const (
	poll    = 5 * time.Millisecond
	workers = 8
)

// Race delivers each of the fixture's events twice, the second time right after the first, and returns the effects. Eight workers
// of two instances of a service handle them through the claim's middleware. Like a router and its broker, Race redelivers nacked
// messages until all are acked. Every tenth event fails at first.
func Race(t *testing.T, f Fixture) map[string]int {
	t.Helper()
	failed := make([]atomic.Bool, f.events())
	handle := func(msg *message.Message) ([]*message.Message, error) {
		var i int
		if _, err := fmt.Sscanf(msg.Metadata.Get("number"), "%d", &i); err != nil {
			return nil, err
		}
		if i%10 == 0 && !failed[i].Swap(true) {
			return nil, errors.New("at first")
		}
		return nil, f.Effect(msg.Context(), msg.UUID)
	}
	var services [2]message.HandlerFunc
	for i := range services {
		c, err := claim.New(f.Store, claim.Config{Service: "labour", Consumer: func(string) string { return "race" }})
		require.NoError(t, err)
		services[i] = c.Middleware(handle)
	}
	type delivery struct {
		number int
		id     string
	}
	queue := make(chan delivery, 2*f.events())
	for i := range f.events() {
		d := delivery{i, newID()}
		queue <- d
		queue <- d
	}
	var left atomic.Int64
	left.Store(int64(len(queue)))
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	next := func() (d delivery, ok bool) {
		select {
		case d, ok = <-queue:
			return d, ok
		case <-ctx.Done():
			return d, false
		}
	}
	var working sync.WaitGroup
	for w := range workers {
		handler := services[w%len(services)]
		working.Go(func() {
			for d, ok := next(); ok; d, ok = next() {
				msg := message.NewMessageWithContext(t.Context(), d.id, nil)
				msg.Metadata.Set("number", fmt.Sprint(d.number))
				_, err := handler(msg)
				switch {
				case err == nil && msg.Ack(): // otherwise the middleware has nacked it
					if left.Add(-1) == 0 {
						close(queue)
					}
				case ctx.Err() != nil:
					t.Errorf("event %d is not done yet: %v", d.number, err)
				default:
					time.AfterFunc(poll, func() { queue <- d })
				}
			}
		})
	}
	working.Wait()
	if n := left.Load(); n > 0 {
		t.Errorf("%d deliveries are not acked", n)
	}
	return f.Effects()
}

// Doubles proves that the race can fail: it repeats the race until an event has had two effects. Pass it a store that checks before
// it acts and holds no lock in between.
func Doubles(t *testing.T, newFixture func(t *testing.T) Fixture) {
	t.Helper()
	for round := range 20 {
		effects := slices.Sorted(maps.Values(Race(t, newFixture(t))))
		if most := effects[len(effects)-1]; most > 1 {
			t.Logf("doubled in round %d", round+1)
			return
		}
	}
	require.Fail(t, "check-then-act never doubled an effect: the race is none")
}
