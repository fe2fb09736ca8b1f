package crashguard_test

import (
	"fmt"
	"testing"
	"time"

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
			for _, i := range rapid.Permutation(indexes(events)).Draw(t, "order") {
				e := fmt.Sprint(i)
				g.Sends()
				if deaths, accused := g.Accuses(e, false); accused {
					require.Equal(t, poison, e)
					require.Equal(t, 3, deaths)
					return
				}
				if e == poison {
					recorded.Suspect = e
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
		}
	}
}

// A relay that survives the event makes it no suspect.
func TestSurvived(t *testing.T) {
	t.Parallel()
	for survived, accused := range map[string]bool{"e": false, "other": true} {
		g := crashguard.New(step.Lease{Suspect: "e", SuspectDeaths: 3}, 1)
		g.Survived(survived)
		_, accuses := g.Accuses("e", false)
		assert.Equal(t, accused, accuses)
	}
}

// When as many events as may be in flight were sent one by one and some were deleted, what is recorded is cleared, but not before each
// batch was answered that was in flight then. Batches that are sent later do not put it off.
func TestPassed(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	g := crashguard.New(step.Lease{Deaths: 2}, 2)
	g.Sends()
	g.Deleted(now)
	assert.True(t, g.Careful())
	assert.False(t, g.Passed(time.Time{}), "one more is sent alone")
	g.Sends()
	assert.False(t, g.Careful())
	assert.False(t, g.Passed(time.Time{}), "nothing was deleted since")
	g.Deleted(now)
	g.Deleted(now.Add(time.Hour))
	for _, c := range []struct {
		oldest time.Time
		passed bool
	}{{now.Add(-1), false}, {now, false}, {now.Add(1), true}, {time.Time{}, true}} {
		assert.Equal(t, c.passed, g.Passed(c.oldest), c.oldest)
	}
	g.Clear()
	g.Deleted(now)
	assert.False(t, g.Passed(time.Time{}), "nothing is recorded")
}
