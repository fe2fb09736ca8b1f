package figures

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/middleware/claim"
)

var now = time.Date(2026, 1, 2, 3, 4, 30, 0, time.UTC)

// handled is what was counted in the minute so many minutes ago.
func handled(minutes int, n, failed int64) claim.FlowMinute {
	return claim.FlowMinute{At: now.Truncate(time.Minute).Add(-time.Duration(minutes) * time.Minute), Handled: n, Failed: failed, Busy: time.Duration(n) * time.Millisecond}
}

// judged is one consumer as the page gets it.
func judged(states map[string]int, pauses []claim.Pause, flow claim.Flow) Consumer {
	flow.Consumer = "shop/book"
	for i := range pauses {
		pauses[i].Consumer = "shop/book"
	}
	return consumers([]claim.Consumer{{Name: "shop/book"}}, map[string]map[string]int{"shop/book": states}, pauses, claim.Flows{Now: now, Consumers: []claim.Flow{flow}})[0]
}

func TestStates(t *testing.T) {
	t.Parallel()
	minutes := func(all ...claim.FlowMinute) claim.Flow { return claim.Flow{Minutes: all} }
	for name, c := range map[string]struct {
		is   Consumer
		want string
	}{
		"nothing":                          {judged(nil, nil, claim.Flow{}), Idle},
		"it handled long ago":              {judged(nil, nil, minutes(handled(20, 9, 9))), Idle},
		"it handles":                       {judged(nil, nil, minutes(handled(1, 9, 0))), Flows},
		"dead letters are no failure":      {judged(map[string]int{"dead": 7}, nil, minutes(handled(1, 9, 0))), Flows},
		"one of 21 fails":                  {judged(map[string]int{"retrying": 1}, nil, minutes(handled(1, 20, 1))), Flows},
		"one of 20 fails":                  {judged(nil, nil, minutes(handled(1, 19, 1))), Failing},
		"all fail":                         {judged(nil, nil, minutes(handled(0, 0, 1))), Failing},
		"nobody counts, and it retries":    {judged(map[string]int{"retrying": 1}, nil, claim.Flow{}), Failing},
		"nobody counts, the broker's turn": {judged(map[string]int{"nacked": 1}, nil, claim.Flow{}), Failing},
		"a key is full":                    {judged(nil, nil, claim.Flow{Full: 1, Minutes: []claim.FlowMinute{handled(0, 0, 9)}}), KeyFull},
		"paused":                           {judged(nil, []claim.Pause{{}}, claim.Flow{Full: 1}), Paused},
	} {
		assert.Equal(t, c.want, c.is.State, name)
	}
	c := judged(map[string]int{"nacked": 1, "retrying": 2, "blocked": 3, "dead": 4}, []claim.Pause{{Until: now.Add(time.Minute)}, {Until: now}}, claim.Flow{Oldest: map[string]time.Time{"nacked": now, "blocked": now.Add(-time.Hour)}})
	assert.Equal(t, []int{3, 3, 4}, []int{c.Retrying, c.Blocked, c.Dead})
	assert.Equal(t, now, c.Pauses[0].Until, "the next try is first")
	assert.Equal(t, now.Add(-time.Hour), c.Oldest)
}

func TestRates(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		handled int64
		want    string
	}{{-1, "–"}, {0, "0"}, {1, "0.2/min"}, {27, "6.0/min"}, {200, "44/min"}, {270, "1.0/s"}, {2680, "9.9/s"}, {27_000, "100/s"}} {
		flow := claim.Flow{}
		if c.handled >= 0 {
			flow.Minutes = []claim.FlowMinute{handled(1, c.handled, 0)}
		}
		assert.Equal(t, c.want, judged(nil, nil, flow).Rate(), "%d in 4.5 minutes", c.handled)
	}
	c := judged(nil, nil, claim.Flow{Minutes: []claim.FlowMinute{handled(50, 100, 3), handled(5, 10, 0), handled(4, 27, 0)}})
	assert.Equal(t, "6.0/min", c.Rate(), "of the last minutes alone")
	assert.Equal(t, int64(137), c.Hour.Handled)
	assert.Equal(t, time.Millisecond, c.Mean())
}

// The line has a point for each full minute of the hour, whatever was counted in it.
func TestSparks(t *testing.T) {
	t.Parallel()
	assert.Nil(t, judged(nil, nil, claim.Flow{}).Spark())
	s := judged(nil, nil, claim.Flow{Minutes: []claim.FlowMinute{handled(61, 1000, 0), handled(60, 5, 0), handled(1, 10, 0), handled(0, 1000, 0)}}).Spark()
	assert.Equal(t, int64(10), s.Most, "neither what is older nor the minute that runs")
	assert.Equal(t, 59, strings.Count(s.Line, "L"))
	assert.True(t, strings.HasPrefix(s.Line, "M1.0 10.0L"), s.Line)
	assert.True(t, strings.HasSuffix(s.Line, "L93.0 2.0"), s.Line)
	assert.Equal(t, []string{"93.0", "2.0"}, []string{s.X, s.Y})
	idle := judged(nil, nil, claim.Flow{Minutes: []claim.FlowMinute{handled(5, 0, 1)}}).Spark()
	assert.NotContains(t, idle.Line, "NaN")
}

// One sentence says how all consumers do, the worst first.
func TestFlowing(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Consumer{
		"No consumer fails.": {}, "1 consumer fails.": {State: Failing}, "1 consumer is paused by its circuit breaker.": {State: Paused},
		"2 keys are full.": {State: KeyFull, Flow: claim.Flow{Full: 2}}, "1 dead letter waits for a decision.": {Dead: 1}, "3 events wait behind earlier ones of their keys.": {Blocked: 3},
	} {
		assert.Equal(t, want, Snapshot{Consumers: []Consumer{c}}.Flowing().Verdict.Text)
	}
}
