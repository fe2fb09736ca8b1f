package fleet

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var (
	errSilent = errors.New("no answer")
	errBroken = errors.New("no relay")
)

// world plays the databases of one server, without any I/O.
type world struct {
	core    *core
	now     time.Time
	server  time.Time
	all     []Database
	work    map[Database]int           // events
	dead    map[Database]bool          // never answers
	broken  map[Database]bool          // its relay does not start
	starts  map[Database]int           // of relays
	answers map[Database]time.Time     // when a question is answered
	relays  map[Database]bool          // that run
	ends    map[Database]time.Time     // when a relay has ended
	since   map[Database]time.Time     // when the oldest event was written
	waited  map[Database]time.Duration // how long the slowest event did
	most    int                        // connections at once
}

func newWorld(databases, connections int) *world {
	start := time.Unix(1_000_000, 0)
	w := &world{
		core: newCore(connections, time.Second, 0, func(d time.Duration) time.Duration { return d }), now: start, server: start,
		work: map[Database]int{}, dead: map[Database]bool{}, broken: map[Database]bool{}, starts: map[Database]int{}, answers: map[Database]time.Time{}, relays: map[Database]bool{},
		ends: map[Database]time.Time{}, since: map[Database]time.Time{}, waited: map[Database]time.Duration{},
	}
	for i := range databases {
		w.all = append(w.all, Database{Name: fmt.Sprint(i)})
	}
	w.core.set(w.now, w.all)
	return w
}

// write commits events, and the watch tells.
func (w *world) write(db Database, n int) {
	if w.work[db] == 0 {
		w.since[db] = w.now
	}
	w.work[db] += n
	if e := w.core.entries[db]; e != nil && !w.dead[db] {
		e.hinted = true
	}
}

// step lets 50 ms pass.
func (w *world) step() {
	w.now = w.now.Add(50 * time.Millisecond)
	w.core.look(w.now, false, nil, w.server)
	for db, at := range w.answers {
		if w.now.Before(at) {
			continue
		}
		delete(w.answers, db)
		p := probe{work: w.work[db] > 0, server: w.server, database: db.Name}
		if w.dead[db] {
			p = probe{err: errSilent}
		}
		w.core.probed(w.now, db, p)
	}
	for db := range w.relays {
		w.work[db] = max(w.work[db]-10, 0)
		if w.work[db] == 0 && !w.since[db].IsZero() {
			w.waited[db] = max(w.waited[db], w.now.Sub(w.since[db]))
			delete(w.since, db)
		}
		w.core.looked(w.now, db, probe{work: w.work[db] > 0, server: w.server, database: db.Name})
	}
	for db, at := range w.ends {
		if !w.now.Before(at) {
			delete(w.ends, db)
			var err error
			if w.broken[db] {
				err = errBroken
			}
			w.core.ended(w.now, db, err)
		}
	}
	actions, _ := w.core.steps(w.now)
	for _, a := range actions {
		switch a.kind {
		case ask:
			w.answers[a.db] = w.now.Add(20 * time.Millisecond)
			if w.dead[a.db] {
				w.answers[a.db] = w.now.Add(10 * time.Second)
			}
		case start:
			w.starts[a.db]++
			if w.broken[a.db] {
				w.ends[a.db] = w.now.Add(20 * time.Millisecond)
			} else {
				w.relays[a.db] = true
			}
		case stop:
			delete(w.relays, a.db)
			w.ends[a.db] = w.now.Add(100 * time.Millisecond)
		}
	}
	w.most = max(w.most, w.core.used()+1)
}

// However the events fall, the budget holds, and every event is published.
func TestBudgetHoldsAndEveryDatabaseGetsItsTurn(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		connections := rapid.IntRange(minConnections, 60).Draw(r, "connections")
		w := newWorld(rapid.IntRange(1, 60).Draw(r, "databases"), connections)
		for range rapid.IntRange(0, 200).Draw(r, "steps") {
			if rapid.IntRange(0, 3).Draw(r, "writes") == 0 {
				w.write(rapid.SampledFrom(w.all).Draw(r, "database"), rapid.IntRange(1, 3000).Draw(r, "events"))
			}
			w.step()
		}
		for i := 0; len(w.since) > 0 && i < 100_000; i++ {
			w.step()
		}
		require.Empty(r, w.since, "events that are never published")
		require.LessOrEqual(r, w.most, connections)
	})
}

// Where a few databases have more work than can be done, others wait for a short turn of one of theirs only.
func TestBacklogsDoNotStarveOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(100, minConnections)
	for _, db := range w.all[:10] {
		w.write(db, 1_000_000)
	}
	for range 1300 { // until each of them had a turn
		w.step()
	}
	late := w.all[50]
	w.write(late, 1)
	for range 100 {
		w.step()
	}
	require.Contains(t, w.waited, late)
	assert.Less(t, w.waited[late], turn)
}

// crowd is databases of two kinds, which share a few relays.
type crowd struct{ tricklers, backlogs, relays int }

// bound is how long a backlog may wait: of the relays that begin, every second one is that of the database that has waited longest.
func (c crowd) bound() time.Duration {
	return 2 * time.Duration(c.tricklers+c.backlogs) * (turn + time.Second) / time.Duration(c.relays)
}

// longest plays tricklers, which write on and on, and are done with each event at once, beside backlogs. It returns the longest time
// that a backlog had no relay.
func (c crowd) longest(each func(*world)) (longest time.Duration) {
	w := newWorld(c.tricklers+c.backlogs, minConnections+(c.relays-1)*relayConnections)
	for _, db := range w.all[c.tricklers:] {
		w.write(db, math.MaxInt)
	}
	had := map[Database]time.Time{}
	for end := w.now.Add(3 * c.bound()); w.now.Before(end); {
		for _, db := range w.all[:c.tricklers] {
			if w.work[db] == 0 {
				w.write(db, 1)
			}
		}
		w.step()
		each(w)
		for _, db := range w.all[c.tricklers:] {
			if last, ok := had[db]; w.relays[db] || !ok {
				had[db] = w.now
			} else {
				longest = max(longest, w.now.Sub(last))
			}
		}
	}
	return longest
}

// Databases that trickle leave each backlog its turn.
func TestTricklesDoNotStarveBacklogs(t *testing.T) {
	t.Parallel()
	for _, c := range []crowd{{1, 1, 1}, {5, 1, 1}, {1, 20, 1}, {40, 3, 1}, {40, 40, 3}, {100, 5, 9}} {
		assert.LessOrEqual(t, c.longest(func(*world) {}), c.bound(), c)
	}
}

// Where those that have just begun to have work always come first, a backlog waits for ever: the test above can fail.
func TestTricklesStarveBacklogsWithoutTheLongestWait(t *testing.T) {
	t.Parallel()
	c := crowd{40, 3, 1}
	assert.Greater(t, c.longest(func(w *world) { w.core.passed = false }), 2*c.bound())
}

// Databases that never answer hold what is theirs, and nothing else.
func TestDeadDatabasesDelayNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(200, 40)
	for _, db := range w.all[:100] {
		w.dead[db] = true
	}
	for range 2000 { // until each has failed
		w.step()
	}
	for _, db := range w.all[100:] {
		w.write(db, 1)
		for range 40 {
			w.step()
		}
		require.Contains(t, w.waited, db)
		assert.LessOrEqual(t, w.waited[db], 2*time.Second)
	}
	assert.LessOrEqual(t, w.most, 40)
}

// A database that answers, and whose relay does not start, is tried less and less often, also while more and more is written. It is
// failing until a relay has started, also where its work is done by somebody else.
func TestStartsThatFailBackOff(t *testing.T) {
	t.Parallel()
	w := newWorld(1, 40)
	db := w.all[0]
	w.broken[db] = true
	for range 12_000 { // ten minutes
		w.write(db, 1)
		w.step()
		if n, err := w.core.entries[db].failing(); w.starts[db] > 1 {
			require.Positive(t, n)
			require.Equal(t, errBroken, err)
		}
	}
	assert.LessOrEqual(t, w.starts[db], 26, "1+2+4+8+16 s, then one in 30 s")
	assert.Greater(t, w.starts[db], 20)
	w.broken[db], w.work[db] = false, 0
	for range 1200 {
		w.step()
	}
	n, err := w.core.entries[db].failing()
	require.NoError(t, err)
	assert.Zero(t, n)
	w.write(db, 1)
	for range 100 {
		w.step()
	}
	assert.Zero(t, w.work[db])
}

// TestLeavingIsNoFailure: the start of a relay that was cut short, because its database left the fleet, counted as one that had hung.
func TestLeavingIsNoFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(1, 40)
	db := w.all[0]
	w.write(db, 1)
	e := w.core.entries[db]
	for e.state != active {
		w.step()
	}
	w.core.set(w.now, nil)
	actions, _ := w.core.steps(w.now)
	require.Equal(t, []action{{stop, db}}, actions)
	w.core.set(w.now, w.all) // it comes back before its relay has ended
	w.core.ended(w.now, db, errBroken)
	n, err := e.failing()
	require.NoError(t, err)
	require.Zero(t, n)
	require.False(t, w.now.Before(e.next), "it is asked at once")
	delete(w.relays, db)
	w.write(db, 1)

	for e.state != active {
		w.step()
	}
	w.core.ended(w.now, db, errBroken)
	n, err = e.failing()
	require.Equal(t, errBroken, err, "a start that fails by itself counts")
	require.Equal(t, 1, n)
}

// Without a watch each database is asked by itself.
func TestWithoutAWatchEachIsAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(20, 40)
	for range 100 {
		w.step()
	}
	w.server = w.server.Add(time.Hour) // the watch is on another server
	db := w.all[7]
	w.work[db], w.since[db] = 1, w.now // and tells nothing
	for range 40 {
		w.step()
		for _, e := range w.core.entries {
			e.answer.server = time.Time{}
		}
	}
	assert.Contains(t, w.waited, db)
}

// A question that was asked before a commit says nothing of it.
func TestAHintDuringAQuestionIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(1, 40)
	w.step()
	require.Contains(t, w.answers, w.all[0])
	e := w.core.entries[w.all[0]]
	w.core.look(w.now, false, []string{"0"}, w.server)
	w.core.probed(w.now, e.db, probe{server: w.server})
	delete(w.answers, e.db)
	assert.Equal(t, e.asked.Add(time.Second), w.core.due(e, w.now))
}
