package wal

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/outbox/internal/gaps"
	"github.com/millrace-go/millrace/outbox/internal/snapshot"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

// world is a database with one shard, its WAL, a stream and a relay, as data structures. A transaction writes rows of one key, and holds the
// key's lock and the table's from its beginning to its end. Between its record in the WAL and its end it is committed and not visible. The
// stream shows its rows one by one.
type world struct {
	random *rand.Rand
	buffer *Buffer
	quiet  bool // nothing happens any more
	slow   bool // transactions wait long for a standby
	reset  bool // discards make the buffer forget

	began    []*writer // the ID of a transaction is its place
	log      []*row    // of committed transactions
	streamed int       // how much of the WAL the stream has shown
	table    []*row
	numbers  int64
	moments  time.Duration // how often time has passed
	written  map[int64]*row

	ref     step.Ref
	tracker gaps.Tracker
	held    map[int64]bool
	found   map[int64]bool // by the last read
	taken   map[*row]int
	byKey   map[int][]int64
	wrong   string
}

type writer struct {
	id        uint32
	key       int
	rows      []*row
	logged    bool
	ended     bool
	visible   time.Time // when it ended
	committed bool
}

type row struct {
	*writer
	seq       int64
	discarded bool
	deleted   bool // before now: nothing may take it any more
}

var started = time.Unix(1e9, 0)

// now returns a time that is later than those before.
func (w *world) now() time.Time {
	w.moments++
	return started.Add(w.moments)
}

func newWorld(seed uint64) *world {
	w := &world{
		random: rand.New(rand.NewPCG(seed, 1)), buffer: NewBuffer(6 * (rowWeight + 1)), slow: seed%2 == 0, reset: true, taken: map[*row]int{}, written: map[int64]*row{}, byKey: map[int][]int64{},
	}
	w.lease()
	return w
}

// lease makes the relay forget what it knows: it has lost the shard and got it again.
func (w *world) lease() {
	w.ref.Lease++
	w.tracker, w.held = gaps.New(), map[int64]bool{}
}

// snapshot is what the server shows now.
func (w *world) snapshot() (s snapshot.Snapshot) {
	s.Next = uint64(len(w.began))
	s.Oldest = s.Next
	for _, t := range w.began {
		if !t.ended {
			s.Running = append(s.Running, uint64(t.id))
		}
	}
	if len(s.Running) > 0 {
		s.Oldest = s.Running[0]
	}
	return s
}

func (w *world) writers() gaps.Writers {
	open := gaps.Writers{}
	for _, t := range w.began {
		if !t.ended {
			open[fmt.Sprint(t.id)] = struct{}{}
		}
	}
	return open
}

// open returns a random transaction that has not ended, or nil.
func (w *world) open(logged bool) *writer {
	var open []*writer
	for _, t := range w.began {
		if !t.ended && t.logged == logged {
			open = append(open, t)
		}
	}
	if len(open) == 0 {
		return nil
	}
	return open[w.random.IntN(len(open))]
}

// happen lets one thing happen beside the relay.
func (w *world) happen() {
	if w.quiet {
		return
	}
	switch w.random.IntN(9) {
	case 0, 1:
		key := w.random.IntN(3)
		if !slices.ContainsFunc(w.began, func(t *writer) bool { return t.key == key && !t.ended }) {
			t := &writer{id: uint32(len(w.began)), key: key}
			w.began = append(w.began, t)
			w.write(t)
		} else if t := w.open(false); t != nil {
			w.write(t)
		}
	case 2, 3:
		if t := w.open(false); t != nil {
			if w.random.IntN(5) == 0 {
				t.ended = true
				return
			}
			t.logged, t.committed = true, true
			w.log = append(w.log, t.rows...)
		}
	case 4, 5:
		if !w.slow || w.random.IntN(8) == 0 {
			w.end(w.open(true))
		}
	case 6, 7:
		w.stream()
	case 8:
		if len(w.table) > 0 && w.random.IntN(2) == 0 { // an operator discards what the relay does not hold
			if t := w.table[w.random.IntN(len(w.table))]; !w.held[t.seq] && w.taken[t] == 0 {
				t.discarded = true
				w.remove(t)
				if w.reset {
					w.buffer.Forget()
				}
			}
		}
	}
}

func (w *world) write(t *writer) {
	w.numbers++
	written := &row{writer: t, seq: w.numbers}
	t.rows = append(t.rows, written)
	w.written[w.numbers] = written
}

func (w *world) end(t *writer) {
	if t != nil {
		t.ended, t.visible = true, w.now()
		w.table = append(w.table, t.rows...)
	}
}

func (w *world) remove(t *row) {
	t.deleted = true
	w.table = slices.DeleteFunc(w.table, func(o *row) bool { return o == t })
	delete(w.held, t.seq)
}

func (w *world) stream() {
	if w.buffer.serverStarted.IsZero() || w.streamed == len(w.log) {
		return
	}
	t := w.log[w.streamed]
	w.streamed++
	w.buffer.Add([]Row{{Transaction: t.id, Event: t.event(true)}})
}

func (t *row) event(log bool) *step.Event {
	e := &step.Event{Row: step.Row{Seq: t.seq, EventID: fmt.Sprint(t.seq), Size: 1, Payload: []byte{1}}}
	if !log {
		e.Place = [6]byte{1}
	}
	return e
}

// restart begins a stream at the end of the WAL, or ends it.
func (w *world) restart() {
	w.buffer.End()
	if w.random.IntN(3) > 0 {
		w.streamed = len(w.log)
		for range w.random.IntN(3) {
			w.happen()
		}
		w.buffer.Begin(started)
	}
}

// read is a read of the relay.
func (w *world) read() {
	scanning, begun := w.tracker.Scanning()
	q := step.Request{Ref: w.ref, From: w.tracker.From(), List: w.tracker.List(), Limit: 1 + w.random.IntN(3), Bytes: 1 + w.random.IntN(3), Table: scanning, Scan: scanning && !begun}
	if scanning {
		q.Limit += len(w.held)
	}
	if len(w.table) > 0 && !scanning && w.random.IntN(4) == 0 { // it needs a payload again
		if t := w.table[w.random.IntN(len(w.table))]; w.held[t.seq] {
			q.List, q.Table = append(q.List, t.seq), true
			defer func() {
				if !w.found[t.seq] && !t.deleted {
					w.fail("the payload of event %d is not found", t.seq)
				}
			}()
		}
	}
	w.found = map[int64]bool{}
	requests := []step.Request{q}
	curious, sent := w.tracker.Curious(), w.now()
	if yes, _ := w.buffer.Answers(requests, sent); yes && (!curious || w.random.IntN(3) > 0) {
		s := w.snapshot()
		for range w.random.IntN(2) {
			w.happen()
		}
		if found, _, _, ok := w.buffer.Take(requests, s, started, sent); ok {
			w.digest(q, found[0], nil)
			return
		}
	}
	ask := w.buffer.Prepare(requests)
	sent = w.now()
	var found step.Found
	found.Last = w.numbers
	w.happen()
	var open gaps.Writers
	if ask || curious {
		open = w.writers()
		w.happen()
	}
	before := w.snapshot()
	w.happen()
	rows := slices.Clone(w.table)
	slices.SortFunc(rows, func(a, b *row) int { return int(a.seq - b.seq) })
	for _, t := range rows {
		if slices.Contains(q.List, t.seq) {
			found.Listed = append(found.Listed, t.event(false))
		}
		if t.seq > q.From && len(found.Above) < q.Limit {
			found.Above = append(found.Above, t.event(false))
		}
	}
	w.happen()
	w.buffer.Learn(requests, step.Answer{Shards: []step.Found{found}, Writers: open}, before, started, sent)
	for _, e := range found.Listed {
		w.found[e.Seq] = true
	}
	if w.random.IntN(20) == 0 && !w.quiet { // the answer comes after the lease
		w.lease()
		return
	}
	w.digest(q, found, open)
}

// digest is what the core does with an answer.
func (w *world) digest(q step.Request, f step.Found, open gaps.Writers) {
	v := gaps.View{More: len(f.Above) >= q.Limit, Last: f.Last, Writers: open}
	for _, e := range f.Listed {
		if w.take(e) {
			v.Fresh = append(v.Fresh, e.Seq)
		}
	}
	for _, e := range f.Above {
		v.Numbers = append(v.Numbers, e.Seq)
		if w.take(e) {
			v.Fresh = append(v.Fresh, e.Seq)
		}
	}
	if w.tracker.Learn(v) {
		w.fail("an event appeared below those that were read")
	}
}

// take publishes an event, if it is not held, and deletes its row later.
func (w *world) take(e *step.Event) bool {
	w.found[e.Seq] = true
	if w.held[e.Seq] {
		return false
	}
	t := w.written[e.Seq]
	fromBuffer := e.Place == [6]byte{}
	switch {
	case !t.ended:
		w.fail("event %d is published before it is visible", e.Seq)
	case fromBuffer && w.taken[t] > 0:
		w.fail("event %d comes from the WAL again", e.Seq)
	case fromBuffer && t.discarded:
		w.fail("event %d was discarded before it is published", e.Seq)
	case fromBuffer && !e.Read.Before(t.visible):
		w.fail("event %d counts as read at a time before which another relay may have published it", e.Seq)
	}
	w.held[e.Seq] = true
	if w.taken[t]++; w.taken[t] == 1 {
		if keys := w.byKey[t.key]; len(keys) > 0 && keys[len(keys)-1] > t.seq {
			w.fail("event %d is overtaken by %d", t.seq, keys[len(keys)-1])
		}
		w.byKey[t.key] = append(w.byKey[t.key], t.seq)
	}
	return true
}

func (w *world) fail(format string, args ...any) {
	if w.wrong == "" {
		w.wrong = fmt.Sprintf(format, args...)
	}
}

// run lets the world live, and then come to rest. It returns what went wrong.
func (w *world) run() string {
	for range 120 {
		switch n := w.random.IntN(40); {
		case n == 0:
			w.restart()
		case n == 1:
			w.lease()
		case n == 2:
			w.buffer.SetLate(w.random.IntN(2) == 0)
		case n < 14:
			w.read()
		case n < 18: // published rows are deleted
			for _, t := range slices.Clone(w.table) {
				if w.held[t.seq] && w.random.IntN(2) == 0 {
					w.remove(t)
				}
			}
		default:
			w.happen()
		}
	}
	for w.open(false) != nil {
		w.open(false).ended = true
	}
	for w.open(true) != nil {
		w.end(w.open(true))
	}
	for w.streamed < len(w.log) && !w.buffer.serverStarted.IsZero() {
		w.stream()
	}
	w.quiet = true
	for range 60 {
		w.read()
	}
	for _, t := range w.written {
		if t.committed && !t.discarded && w.taken[t] == 0 {
			w.fail("event %d is lost", t.seq)
		}
	}
	return w.wrong
}

const worlds = 2000

// No event is lost, overtaken, published before it is visible or published from the WAL again, whatever the order in which transactions take
// numbers, commit, become visible and are streamed.
func TestWALAndTableTogetherShowEveryEventOnce(t *testing.T) {
	t.Parallel()
	answered := 0
	for seed := range uint64(worlds) {
		w := newWorld(seed)
		if wrong := w.run(); !assert.Empty(t, wrong, "seed %d", seed) {
			return
		}
		answered += w.buffer.Complete()
	}
	assert.Greater(t, answered, worlds/5, "the WAL answers in many worlds")
}

// Each rule of the buffer is needed.
func TestWALControls(t *testing.T) {
	t.Parallel()
	for name, without := range map[string]func(w *world){
		"the writers at the first read have ended": func(w *world) {
			w.buffer.rules.settled = func(gaps.Writers, gaps.Writers) bool { return true }
		},
		"what a snapshot showed was read": func(w *world) {
			w.buffer.rules.read = func(snapshot.Snapshot, uint32) bool { return false }
		},
		"the buffer forgets when events may have been discarded": func(w *world) { w.reset = false },
		"only what is visible is given out": func(w *world) {
			w.buffer.rules.visible = func(snapshot.Snapshot, uint32) bool { return true }
		},
		"a row is as old as the read of the table that did not show it": func(w *world) {
			w.buffer.rules.since = func(_, sent time.Time) time.Time { return sent }
		},
		"the table answers what only the table has": func(w *world) {
			w.buffer.rules.covers = func(step.Request) bool { return true }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(worlds) {
				w := newWorld(seed)
				without(w)
				if wrong := w.run(); wrong != "" {
					t.Logf("seed %d: %s", seed, wrong)
					return
				}
			}
			t.Error("nothing goes wrong without it")
		})
	}
}
