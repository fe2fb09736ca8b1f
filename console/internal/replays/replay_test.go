package replays

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/middleware/deadletter"
)

// Of a large replay some events are not counted. They may have failed again, so the page does not show them as handled.
func TestReplayThatWasCountedInPart(t *testing.T) {
	t.Parallel()
	r := deadletter.ReplayStatus{State: deadletter.ReplayRunning, Selected: 50_000, Replayed: 40_000, Handled: 27_000, Untried: 12_000, Dead: 1000, AtLeast: true}
	v := View(r, true)
	assert.Equal(t, []Figure{
		{N: 27_000, Word: "handled or not counted", Shape: "pending", Width: 540},
		{AtLeast: true, Word: "retrying", Shape: "retrying", X: 540},
		{N: 1000, AtLeast: true, Word: "dead again", Shape: "dead", X: 540, Width: 20},
		{N: 12_000, AtLeast: true, Word: "not tried yet", Shape: "run", X: 560, Width: 240},
		{Word: "left out", Shape: "discarded", X: 800},
		{N: 10_000, Word: "to come", Shape: "pending", X: 800, Width: 200},
	}, v.Figures)
	assert.True(t, v.Waits, "no replay goes on while 10,000 events are untried")
	r.AtLeast = false
	assert.Equal(t, Figure{N: 27_000, Word: "handled", Shape: "done", Width: 540}, View(r, true).Figures[0])
}
