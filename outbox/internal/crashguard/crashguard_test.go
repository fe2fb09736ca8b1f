package crashguard_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-go/millrace/outbox/internal/crashguard"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

// One event among others ends each relay that sends it. Relay after relay takes the shard. Few end before that event is accused, and
// no other one is, whatever the order in which each sends its events and however many it sends at once while nothing is known.
func TestOnlyThePoisonIsAccused(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		events := rapid.IntRange(1, 10).Draw(t, "events")
		poison := fmt.Sprint(rapid.IntRange(0, events-1).Draw(t, "poison"))
		recorded := step.Lease{}
		for ended := 0; ; ended++ {
			require.LessOrEqual(t, ended, 5, "two before anything is noted, and three that send it")
			g := crashguard.New(recorded, events)
			recorded.Deaths++
			if !g.Careful() {
				continue // a batch has the poison, and ends the relay
			}
			var order []string
			if s := g.Suspect(); s != "" {
				order = append(order, s)
			}
			for _, i := range rapid.Permutation(indexes(events)).Draw(t, "order") {
				order = append(order, fmt.Sprint(i))
			}
			for _, e := range order {
				if !g.Careful() {
					break
				}
				g.Sends()
				if deaths, accused := g.Accuses(e, false); accused {
					require.Equal(t, poison, e)
					require.Equal(t, 3, deaths)
					return
				}
				if recorded.Suspect != e {
					recorded.Suspect, recorded.SuspectDeaths = e, 0
				}
				if e == poison {
					recorded.SuspectDeaths++
					break
				}
			}
		}
	})
}

func indexes(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

// After its pause one more relay that ends is enough; before, it takes three. What was accused is no suspect any more.
func TestAccuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		deaths          int
		paused, accused bool
	}{{0, true, false}, {1, true, true}, {1, false, false}, {2, false, false}, {3, false, true}} {
		g := crashguard.New(step.Lease{Suspect: "e", SuspectDeaths: c.deaths}, 1)
		_, accused := g.Accuses("other", c.paused)
		assert.False(t, accused)
		_, accused = g.Accuses("e", c.paused)
		assert.Equal(t, c.accused, accused, "%+v", c)
		if c.accused {
			_, again := g.Accuses("e", c.paused)
			assert.False(t, again)
			assert.Empty(t, g.Suspect())
		}
	}
}

// A relay that survives the event makes it no suspect. After as many events as may be in flight, a delete clears what is recorded.
func TestSurvivedAndPassed(t *testing.T) {
	t.Parallel()
	g := crashguard.New(step.Lease{Deaths: 2, Suspect: "e", SuspectDeaths: 1}, 2)
	assert.Equal(t, "e", g.Suspect())
	g.Survived("other")
	assert.Equal(t, "e", g.Suspect())
	g.Survived("e")
	assert.Empty(t, g.Suspect())
	g.Sends()
	assert.True(t, g.Careful())
	assert.False(t, g.Passed())
	g.Sends()
	assert.False(t, g.Careful())
	assert.True(t, g.Passed())
	g.Clear()
	assert.False(t, g.Passed())
}
