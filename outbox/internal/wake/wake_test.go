package wake_test

import (
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-go/millrace/outbox/internal/wake"
)

// Whoever takes learns of every event that was told since, in this process or by the notification of another one, and has a signal
// as long as there is something to take.
func TestNothingToldIsMissed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		schema := strconv.Itoa(rapid.Int().Draw(t, "schema"))
		here, elsewhere, there := wake.New(), wake.New(), wake.New()
		defer wake.Listen(schema, here)()
		defer wake.Listen(schema, elsewhere)() // a notifier, which tells the relay in another process
		told := map[int64]bool{}
		signalled := func(c *wake.Collector) bool { return len(c.Signal()) == 1 }
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "tell") {
				hashes := rapid.SliceOfN(rapid.Int64Min(0), 1, 80).Draw(t, "hashes")
				wake.Tell(schema, hashes...)
				for _, h := range hashes {
					told[h] = true
				}
				continue
			}
			if len(told) > 0 {
				require.True(t, signalled(here))
				require.True(t, signalled(elsewhere))
				<-here.Signal()
				<-elsewhere.Signal()
			}
			hashes, all, _ := here.Take()
			if !all {
				for h := range told {
					require.Contains(t, hashes, h)
				}
			}
			hashes, all, _ = elsewhere.Take()
			payload := wake.Payload(hashes, all)
			require.Less(t, len(payload), 8000, "PostgreSQL takes no longer one")
			there.AddPayload(payload)
			hashes, all, _ = there.Take()
			if !all {
				for h := range told {
					require.True(t, slices.Contains(hashes, h))
				}
			}
			clear(told)
		}
	})
}

// A payload that this program does not know makes the relay look at everything, failed events too.
func TestUnknownPayloadMeansAnything(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{"", "1,x", "-1", "1,,2", "v2:1"} {
		c := wake.New()
		c.AddPayload(payload)
		hashes, all, look := c.Take()
		assert.Empty(t, hashes, payload)
		assert.True(t, all, payload)
		assert.True(t, look, payload)
	}
	c := wake.New()
	c.AddPayload("1,2")
	hashes, all, look := c.Take()
	assert.Equal(t, []int64{1, 2}, hashes)
	assert.False(t, all)
	assert.False(t, look)
}

// A commit in another schema, or after the end of listening, is not told.
func TestOnlyListenersAreTold(t *testing.T) {
	t.Parallel()
	c := wake.New()
	stop := wake.Listen("one", c)
	wake.Tell("another", 1)
	assert.Empty(t, c.Signal())
	stop()
	wake.Tell("one", 1)
	assert.Empty(t, c.Signal())
}
