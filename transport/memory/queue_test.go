package memory

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func newQueued(key, payload string) *queued {
	return &queued{msg: message.NewMessage("id", []byte(payload)), key: key}
}

func payload(item *queued) string {
	if item == nil {
		return ""
	}
	return string(item.msg.Payload)
}

func TestQueueLanes(t *testing.T) {
	now := time.Unix(1000, 0)
	q := newQueue(true)
	for _, item := range []*queued{newQueued("a", "a1"), newQueued("a", "a2"), newQueued("b", "b1"), newQueued("", "f1"), newQueued("", "f2")} {
		q.push(item)
	}
	take := func() *queued {
		item, _ := q.take(now)
		return item
	}
	a1, b1, f1, f2 := take(), take(), take(), take()
	require.Equal(t, []string{"a1", "b1", "f1", "f2"}, []string{payload(a1), payload(b1), payload(f1), payload(f2)})
	require.Nil(t, take(), "a2 waits for a1")

	q.retry(a1, now.Add(time.Second))
	item, due := q.take(now)
	require.Nil(t, item)
	require.Equal(t, now.Add(time.Second), due)
	now = due
	a1 = take()
	require.Equal(t, "a1", payload(a1))
	require.Equal(t, 2, a1.attempts)
	require.Nil(t, take())
	q.done(a1)
	require.Equal(t, "a2", payload(take()))
	q.done(b1)
	q.push(newQueued("b", "b2"))
	b2 := take()
	require.Equal(t, "b2", payload(b2))

	q.putBack(b2)
	require.Zero(t, b2.attempts, "nobody has seen it")
	require.Equal(t, "b2", payload(take()))
	_, due = q.take(now)
	require.Zero(t, due)
}

func TestQueueWithoutOrder(t *testing.T) {
	q := newQueue(false)
	q.push(newQueued("a", "a1"))
	q.push(newQueued("a", "a2"))
	first, _ := q.take(time.Unix(0, 0))
	second, _ := q.take(time.Unix(0, 0))
	require.Equal(t, "a2", payload(second), "keys hold nothing back")
	q.done(second)
	q.done(first)
	require.Empty(t, q.lanes)
}

// In each interleaving every message is delivered until it is done, the messages of a key come one at a time and in order, and no
// message comes before it is due.
func TestQueueLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(0, 0)
		q := newQueue(true)
		var inFlight []*queued
		next := map[string]int{}  // key -> number of the next message to push
		ended := map[string]int{} // key -> number of messages that are done
		numbers := map[*queued]int{}
		deliver := func() *queued {
			item, due := q.take(now)
			if item == nil {
				if !due.IsZero() && !due.After(now) {
					t.Fatalf("%s is due at %s and was not taken", due, now)
				}
				return nil
			}
			if item.due.After(now) {
				t.Fatalf("taken at %s, due at %s", now, item.due)
			}
			if item.key != "" && numbers[item] != ended[item.key] {
				t.Fatalf("key %s: got number %d after %d were done", item.key, numbers[item], ended[item.key])
			}
			return item
		}
		pick := func(action *rapid.T) *queued {
			if len(inFlight) == 0 {
				action.Skip("nothing in flight") // rapid takes another action instead
			}
			i := rapid.IntRange(0, len(inFlight)-1).Draw(action, "which")
			item := inFlight[i]
			inFlight = append(inFlight[:i], inFlight[i+1:]...)
			return item
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				key := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "key")
				item := newQueued(key, fmt.Sprint(next[key]))
				numbers[item] = next[key]
				next[key]++
				q.push(item)
			},
			"take": func(*rapid.T) {
				if item := deliver(); item != nil {
					inFlight = append(inFlight, item)
				}
			},
			"done": func(t *rapid.T) {
				item := pick(t)
				ended[item.key]++
				q.done(item)
			},
			"retry": func(t *rapid.T) {
				q.retry(pick(t), now.Add(time.Duration(rapid.IntRange(0, 5).Draw(t, "seconds"))*time.Second))
			},
			"putBack": func(t *rapid.T) { q.putBack(pick(t)) },
			"wait":    func(*rapid.T) { now = now.Add(time.Second) },
		})
		// Drain the queue: finish everything that was pushed.
		now = now.Add(time.Hour)
		for {
			for _, item := range inFlight {
				ended[item.key]++
				q.done(item)
			}
			inFlight = nil
			item := deliver()
			if item == nil {
				break
			}
			inFlight = append(inFlight, item)
		}
		for key, n := range next {
			if ended[key] != n {
				t.Fatalf("key %q: %d of %d came to their end", key, ended[key], n)
			}
		}
		if len(q.lanes) != 0 {
			t.Fatalf("lanes are left: %v", q.lanes)
		}
	})
}
