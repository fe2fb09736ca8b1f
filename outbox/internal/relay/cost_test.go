package relay

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/internal/gaps"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

// From the read to the delete the core allocates lists, and nothing for each event: it holds what the read has found. When it
// copied each event, a relay allocated 3,100 bytes for an event of 1 KB, and not 2,400.
//
//nolint:paralleltest // the allocations of other tests would count
func TestCoreAllocatesNothingForEachEvent(t *testing.T) {
	const events, runs = 1000, 20
	now := time.Unix(1e9, 0)
	c := New(Config{
		BatchSize: events, MaxInFlight: 2 * events, Batches: true, PollInterval: time.Hour, LeaseTTL: time.Hour, StuckAfter: time.Hour,
		Fault: func(error) Fault { return Unknown }, Retry: func(string, error, int) (bool, time.Duration) { return false, time.Second },
		Gaps: gaps.New, Jitter: func(d time.Duration) time.Duration { return d },
	}, now)
	c.Next(now)
	c.Apply(now, step.Renewed{Began: now, Held: []step.Lease{{}}, Fair: 1, Shards: 1})
	c.Apply(now, step.BlockedLoaded{Shards: []step.Ref{c.order[0].Ref}})
	var found []step.Found // what each read will find
	last := int64(0)
	for range runs + 10 { // reads are ahead of deletes
		f := step.Found{}
		for range events {
			last++
			f.Above = append(f.Above, &step.Event{Row: step.Row{Seq: last, EventID: strconv.FormatInt(last, 10), Topic: "t", Key: fmt.Sprint(last % 100), Payload: []byte("p"), Size: 3, Written: now}})
		}
		found = append(found, f)
	}
	results := make([]error, 2*events)
	left := 0 // events that were deleted
	work := func() {
		for want := left + events; left < want; {
			actions, wait := c.Next(now)
			if len(actions) == 0 {
				now = now.Add(wait)
			}
			for _, a := range actions {
				switch a := a.(type) {
				case step.Read:
					require.NotEmpty(t, found)
					answer := step.Answer{Shards: found[:1:1], Now: now, Writers: gaps.Writers{}}
					found = found[1:]
					c.Apply(now, step.ReadDone{Answer: answer})
				case step.Publish:
					c.Apply(now, step.Published{Ref: a.Ref, Queue: a.Queue, Results: results[:len(a.Rows)]})
				case step.Delete:
					left += len(a.Rows)
					c.Apply(now, step.Deleted{})
				}
			}
		}
	}
	work()
	work()
	per := testing.AllocsPerRun(runs, work) / events
	t.Logf("%.3f allocations for an event", per)
	assert.Less(t, per, 0.3)
}

// Each step of the relay sorted all keys that wait for the end of their backoff.
//
//nolint:paralleltest // the allocations of other tests would count
func TestKeysInBackoffCostNothing(t *testing.T) {
	w := newWorld(t, 1)
	n := w.start()
	w.run(time.Second)
	s := n.core.order[0]
	for i := range 1000 {
		k := &key{name: fmt.Sprint(i), failing: true}
		k.retry.Until = w.now.Add(time.Second)
		s.failing[k] = struct{}{}
		s.resumeAt = k.retry.Until
	}
	assert.Zero(t, testing.AllocsPerRun(10, func() { s.resume(w.now) }))
	s.resume(w.now.Add(time.Second))
	assert.Empty(t, s.failing)
}
