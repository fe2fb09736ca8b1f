package relay

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/internal/gaps"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

// A shard that is idle sends at once. After an answer it gathers events for a while, unless they fill a batch.
func TestGather(t *testing.T) {
	t.Parallel()
	const gather, full = 20 * time.Millisecond, 5
	now := time.Unix(1e9, 0)
	c := New(Config{
		BatchSize: full, MaxInFlight: 1000, Batches: true, PollInterval: time.Hour, LeaseTTL: time.Hour, StuckAfter: time.Hour, Gather: gather,
		Fault: func(error) Fault { return Unknown }, Retry: func(string, error, int) (bool, time.Duration) { return false, time.Second },
		Gaps: gaps.New, Jitter: func(d time.Duration) time.Duration { return d },
	}, now)
	last := int64(0)
	found := step.Found{}
	comes := func(topic string, n int) {
		for range n {
			last++
			found.Above = append(found.Above, &step.Event{Row: step.Row{Seq: last, EventID: fmt.Sprint(last), Topic: topic, Payload: []byte("p"), Size: 1, Written: now}})
		}
		c.Apply(now, step.Woken{All: true})
	}
	// sent is what is sent until then, by topic. Reads and deletes are answered at once.
	sent := func(until time.Time) map[string]int {
		rows := map[string]int{}
		for {
			actions, wait := c.Next(now)
			for _, a := range actions {
				switch a := a.(type) {
				case step.Renew:
					c.Apply(now, step.Renewed{Began: now, Held: []step.Lease{{}}, Fair: 1, Shards: 1})
				case step.LoadBlocked:
					c.Apply(now, step.BlockedLoaded{Shards: a.Shards})
				case step.Read:
					c.Apply(now, step.ReadDone{Answer: step.Answer{Shards: []step.Found{found}, Now: now, Writers: gaps.Writers{}}})
					found = step.Found{}
				case step.Delete:
					c.Apply(now, step.Deleted{})
				case step.Publish:
					rows[a.Queue] += len(a.Rows)
				}
			}
			if len(actions) > 0 {
				continue
			}
			if wait <= 0 || !now.Add(wait).Before(until) {
				now = until
				return rows
			}
			now = now.Add(wait)
		}
	}
	answered := func(topic string, n int) {
		c.Apply(now, step.Published{Ref: c.order[0].Ref, Queue: topic, Results: make([]error, n)})
	}
	soon := func() time.Time { return now.Add(gather / 2) }

	comes("a", 1)
	require.Equal(t, map[string]int{"a": 1}, sent(soon()), "it is idle")
	answered("a", 1)
	comes("a", 1)
	comes("b", 1)
	require.Empty(t, sent(soon()))
	comes("a", 1)
	require.Equal(t, map[string]int{"a": 2, "b": 1}, sent(now.Add(gather)))
	answered("a", 2)
	answered("b", 1)
	comes("a", full)
	require.Equal(t, map[string]int{"a": full}, sent(soon()), "it is full")
	answered("a", full)
	require.Empty(t, sent(now.Add(2*gather)))
	comes("a", 1)
	require.Equal(t, map[string]int{"a": 1}, sent(soon()), "it is idle again")

	answered("a", 1)
	comes("b", 1)
	for range 2 { // answers to a topic with a backlog put off another topic's event, but not for ever
		comes("a", full)
		require.Equal(t, map[string]int{"a": full}, sent(soon()))
		answered("a", full)
	}
	require.Equal(t, map[string]int{"b": 1}, sent(soon()))
}
