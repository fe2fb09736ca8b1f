package claimtest_test

import (
	"context"
	"maps"
	"sync"
	"testing"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/claim/claimtest"
)

// The test of a store of your own: claims that it grants, effects and outputs that it lets happen are counted.
func ExampleRun() {
	newStore := func(t *testing.T, staged func(id string)) claim.Store {
		t.Fatal("your store, which calls staged for each message that leaves")
		return nil
	}

	test := func(t *testing.T) { // for you: func TestConformance(t *testing.T)
		claimtest.Run(t, func(t *testing.T) claimtest.Fixture {
			effects, outputs := &counts{}, &counts{}
			return claimtest.Fixture{
				Store: newStore(t, outputs.add),
				Effect: func(_ context.Context, eventID string) error {
					effects.add(eventID)
					return nil
				},
				Effects: effects.all,
				Outputs: outputs.all,
			}
		})
	}
	_ = test
}

type counts struct {
	mu   sync.Mutex
	byID map[string]int
}

func (c *counts) add(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byID == nil {
		c.byID = map[string]int{}
	}
	c.byID[id]++
}

func (c *counts) all() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.byID)
}
