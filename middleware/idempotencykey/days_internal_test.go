package idempotencykey

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// The days must not depend on the time of day, which the process's clock may have wrong: with 36 hours and a clock of 12:05, an answer
// of 23:56 two days before was not found at 11:55 of the server's clock.
func TestDaysThatMayHaveTheAnswer(t *testing.T) {
	t.Parallel()
	noon := time.Date(2020, 3, 1, 12, 5, 0, 0, time.UTC)
	for retention, days := range map[time.Duration]string{
		24 * time.Hour: "'{2020-02-29,2020-03-01}'",
		30 * time.Hour: "'{2020-02-28,2020-02-29,2020-03-01}'",
		36 * time.Hour: "'{2020-02-28,2020-02-29,2020-03-01}'",
	} {
		k := &Keys{cfg: Config{Retention: retention}, find: "any ('{}')"}
		assert.Equal(t, "any ("+days+")", k.findAt(noon))
		assert.Equal(t, k.findAt(noon), k.findAt(noon.In(time.FixedZone("east", 5*3600))), "days are UTC's")
	}
}

// The process's clock is a day off: it learns the server's day, and is right from then on.
func TestClockOfTheServer(t *testing.T) {
	t.Parallel()
	var c clock
	assumed := c.now()
	assert.False(t, c.set(assumed, assumed))
	server := assumed.Add(-24 * time.Hour)
	assert.True(t, c.set(server, assumed))
	assert.WithinDuration(t, server, c.now(), time.Minute)
	assert.False(t, c.set(c.now(), c.now()))
}
