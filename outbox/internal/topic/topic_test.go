package topic_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-go/millrace/outbox/internal/backoff"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/topic"
)

var errDown = errors.New("down")

func same(d time.Duration) time.Duration { return d }

// Whatever shards send and the broker answers: of a topic that stands one batch at a time is in flight, also beside those that were
// sent before; it is asked again a second after an answer at the latest; and when the broker takes an event, all shards go on.
func TestOneShardAsksAtATime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1e9, 0)
		tp := topic.Set{}.Of("t")
		asking := map[int]bool{} // by shard: a batch is in flight, and whether it asks
		stands := false
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			shard := rapid.IntRange(0, 3).Draw(t, "shard")
			asks, inFlight := asking[shard]
			switch {
			case !inFlight && !tp.Stands(now):
				asking[shard] = tp.Ask()
				require.Equal(t, stands, asking[shard], "a batch of a topic that stands asks")
			case !inFlight:
				now = now.Add(time.Duration(rapid.IntRange(1, 500).Draw(t, "ms")) * time.Millisecond)
			default:
				delete(asking, shard)
				if asks {
					tp.EndAsk()
				}
				if rapid.Bool().Draw(t, "down") {
					require.Equal(t, !stands, tp.Outage(errDown, same, now))
					stands = true
				} else {
					tp.Took(now)
					stood, _ := tp.Answered(now)
					require.Equal(t, stands, stood)
					stands = false
				}
			}
			asks = false
			for _, a := range asking {
				require.False(t, asks && a, "two batches ask")
				asks = asks || a
			}
			if !stands {
				require.False(t, tp.Stands(now))
			} else if !asks {
				require.LessOrEqual(t, tp.Next().Sub(now), backoff.MostOfTopic)
				require.False(t, tp.Stands(tp.Next()))
			}
		}
	})
}

// What an operator has set holds for the topic, and for those that are redirected to it. What is no longer set ends. Each change is
// told once.
func TestControl(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	s := topic.Set{}
	a := s.Of("a")
	require.True(t, a.Outage(errDown, same, now))
	told := func(controls ...step.Control) (changes []string) {
		for _, c := range s.Control(controls) {
			changes = append(changes, fmt.Sprint(c.Name, " ", c.Kind, " to ", c.To))
		}
		return changes
	}
	redirected := step.Control{Topic: "a", To: "b"}
	assert.Equal(t, []string{fmt.Sprint("a ", step.ReportRedirected, " to b")}, told(redirected))
	assert.False(t, a.Stands(now), "another topic is asked at once")
	assert.Empty(t, told(redirected))
	assert.Equal(t, []string{fmt.Sprint("a ", step.ReportPaused, " to b"), fmt.Sprint("b ", step.ReportPaused, " to b")}, told(redirected, step.Control{Topic: "b", Paused: 7}))
	assert.True(t, a.Stands(now.Add(time.Hour)))
	assert.Zero(t, a.Next(), "an operator tells")
	assert.Equal(t, []string{fmt.Sprint("a ", step.ReportRedirected, " to a"), fmt.Sprint("a ", step.ReportResumed, " to a"), fmt.Sprint("b ", step.ReportResumed, " to b")}, told())
	assert.False(t, a.Stands(now))
}

// A service that has a topic for each customer does not fill the memory. What an operator has set, an outage and what is used stay.
func TestForget(t *testing.T) {
	t.Parallel()
	s := topic.Set{}
	used, paused, down, redirected := s.Of("used"), s.Of("paused"), s.Of("down"), s.Of("redirected")
	paused.Paused, redirected.To = 1, "elsewhere" // events that come before the next poll go there, too
	down.Outage(errDown, same, time.Unix(1e9, 0))
	inUse := func() map[*topic.Topic]bool { return map[*topic.Topic]bool{used: true} }
	for i := range topic.MaxIdle - 4 {
		s.Of(fmt.Sprint(i))
	}
	s.Forget(inUse)
	assert.Len(t, s, topic.MaxIdle, "few cost nothing")
	s.Of("one more")
	s.Forget(inUse)
	assert.Equal(t, topic.Set{"used": used, "paused": paused, "down": down, "redirected": redirected}, s)
}

// Nothing is asked of the database while no event recovers; what was asked and failed is asked again, once a minute.
func TestDeadEventsAreRetriedOnceAMinute(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	s := topic.Set{}
	asked := func(after time.Duration) (reasons []string) {
		now = now.Add(after)
		retries, _ := s.RetryDead(same, now)
		for _, r := range retries {
			reasons = append(reasons, r.Reasons...)
		}
		return reasons
	}
	a := s.Of("a")
	require.Empty(t, asked(time.Hour))
	a.Recovered("x")
	a.Recovered("x")
	a.Recovered("")
	require.Equal(t, []string{"x"}, asked(0))
	require.Equal(t, time.Minute, s.DeadRetried(step.DeadRetried{RetryDead: step.RetryDead{Topic: "a", Reasons: []string{"x"}}, Err: errDown}, now))
	a.Recovered("y")
	_, at := s.RetryDead(same, now)
	require.Equal(t, now.Add(time.Minute), at)
	require.Empty(t, asked(59*time.Second))
	require.Equal(t, []string{"x", "y"}, asked(time.Second))
	a.Recovered("z")
	require.Empty(t, asked(time.Hour), "the last one is under way")
	s.DeadRetried(step.DeadRetried{RetryDead: step.RetryDead{Topic: "a"}, Events: 1}, now)
	require.Equal(t, []string{"z"}, asked(0))
	s.DeadRetried(step.DeadRetried{RetryDead: step.RetryDead{Topic: "a"}}, now)
	for i := range 100 {
		a.Recovered(fmt.Sprint(i))
	}
	require.Len(t, asked(time.Hour), 10)
}

// A relay reports a bounded number of topics besides those that an operator has paused: a discard waits for each of these.
func TestStatesAreBounded(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	s := topic.Set{}
	for i := range 300 {
		s.Of(fmt.Sprint(i)).Failed(errDown, now)
	}
	for i := range 150 {
		s.Of(fmt.Sprint("paused ", i)).Paused = 1
	}
	s.Of("z").Paused = 1
	s.Of("in flight").Paused = 1
	states := s.States(func(name string) topic.Use { return topic.Use{Waiting: true, InFlight: name == "in flight"} }, now)
	require.Equal(t, 151+100, len(states)) //nolint:testifylint // Len would print all of them
	assert.Equal(t, step.TopicState{Topic: "z", State: step.TopicPaused, Pause: 1}, states[150])
	assert.Equal(t, step.TopicFailing, states[151].State)
}
