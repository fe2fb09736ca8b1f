package progress

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// world is Kafka and PostgreSQL with one shard of an outbox, and relays that hold its lease one after another and do not know
// when they have lost it. Requests and answers come late, in any order, or never.
type world struct {
	breaks
	intn func(int) int
	calm bool // nothing fails any more, and there is one relay
	now  int64

	// PostgreSQL
	rows    []*event
	numbers int64
	writing []*event // numbers that are taken, by transactions that have not committed
	saved   struct {
		rows    []*event
		numbers int64
	}
	undurable []*event // deleted, and not on disk

	// Kafka
	epoch   int
	open    *transaction
	ending  *transaction // decided, and the partitions do not know it yet
	log     []record
	history histories

	net, answers []func()
	holders      []*holder
	events       []*event
	commits      map[string]int
	wrong        string
	loose        bool // events may be published twice: the database or the progress was set back
}

// histories are what operators and disasters do.
type histories struct{ restore, sequence, lost bool }

// breaks are ways to get the protocol wrong, outside of the package's rules.
type breaks struct {
	rules       func(*rules)
	early       bool // rows are deleted when the brokers have them, before the transaction ends
	unfenced    bool // each holder has a transactional ID of its own
	beside      bool // the progress is written after the transaction
	unstable    bool // the progress is read before the end of the earlier transaction is in its partition
	twice       bool // the end of a transaction is sent twice
	ghosts      bool // a relay forgets an event while a read is under way that may return it
	lookFirst   bool // the rows are looked for before the shard is taken
	dropOnSend  bool // an event leaves the progress when its delete is sent
	asyncDelete bool // a crash of the server brings back what was deleted
}

type event struct {
	id       string
	seq      int64
	key, nth int
}

type transaction struct {
	state  int // 0: open; committed; aborted
	events []*event
}

const committed, aborted = 1, 2

type record struct {
	of       *transaction // nil: outside of any
	event    *event
	progress []ID
}

// holder is a relay with the lease, or one that believes so.
type holder struct {
	shard    *Shard
	epoch    int
	held     map[step.Identity]*row
	ready    []*row
	reading  bool
	ghosts   []*row
	batch    *Batch
	waiting  bool // for an answer
	early    []ID // found before Take
	deleting bool
	unsaved  []*row
}

type row struct {
	step.Row
	event *event
}

var errUnknown = errors.New("the answer is lost")

func (w *world) fail(format string, args ...any) {
	w.wrong = cmp.Or(w.wrong, fmt.Sprintf(format, args...))
}

func (w *world) chance(n int) bool { return w.intn(n) == 0 }

// call sends a request. Its answer may be lost: then the holder is told that, at some time.
func (w *world) call(do func() (answer func()), lost func()) {
	answered := false
	once := func(f func()) func() {
		return func() {
			if !answered {
				answered = true
				f()
			}
		}
	}
	w.net = append(w.net, func() {
		answer := do()
		if !w.calm && w.chance(20) {
			answer = lost
		}
		w.answers = append(w.answers, once(answer))
	})
	if !w.calm && w.chance(20) { // its patience may end before
		w.answers = append(w.answers, once(lost))
	}
}

// The broker.

func (w *world) end(state int) {
	t := w.open
	w.open, w.ending, t.state = nil, t, state
	if state != committed {
		return
	}
	for _, e := range t.events {
		if w.commits[e.id]++; w.commits[e.id] > 1 && !w.loose {
			w.fail("event %s is published twice", e.id)
		}
	}
}

// take fences, and answers before the partitions know that the earlier transaction has ended.
func (w *world) take() int {
	if w.open != nil && !w.unfenced {
		w.end(aborted)
	}
	w.epoch++
	return w.epoch
}

func (w *world) valid(epoch int) bool { return epoch == w.epoch || w.unfenced }

func (w *world) produce(epoch int, records ...record) bool {
	if !w.valid(epoch) || w.ending != nil {
		return false
	}
	if w.open == nil {
		w.open = &transaction{}
	}
	for _, r := range records {
		r.of = w.open
		w.log = append(w.log, r)
		if r.event != nil {
			w.open.events = append(w.open.events, r.event)
		}
	}
	return true
}

// progress returns that of the last committed transaction whose end is known, and whether nothing newer may come.
func (w *world) progress() (ids []ID, stable bool) {
	stable = true
	for _, r := range slices.Backward(w.log) {
		switch {
		case r.of != nil && (r.of == w.open || r.of == w.ending):
			stable = false
		case r.progress != nil && (r.of == nil || r.of.state == committed):
			return r.progress, stable
		}
	}
	return nil, stable
}

// A holder.

func (w *world) hold() {
	h := &holder{shard: New(6), held: map[step.Identity]*row{}}
	if w.rules != nil {
		w.rules(&h.shard.rules)
	}
	w.holders = append(w.holders, h)
}

func (w *world) alive(h *holder) bool { return slices.Contains(w.holders, h) }

// ask is call for a holder, which may have died meanwhile.
func (w *world) ask(h *holder, do func() func(), lost func()) {
	living := func(f func()) func() {
		return func() {
			if w.alive(h) {
				f()
			}
		}
	}
	w.call(func() func() { return living(do()) }, living(lost))
}

func (w *world) step(h *holder) {
	if !h.reading && w.chance(2) {
		w.read(h)
	}
	if !h.deleting && len(h.unsaved) > 0 && w.chance(2) {
		w.delete(h)
	}
	if h.waiting {
		return
	}
	if h.batch == nil {
		if len(h.ready) == 0 || !w.chance(4) {
			return
		}
		h.batch = h.shard.Begin(rowsOf(h.ready[:min(3, len(h.ready))]))
	}
	h.waiting = true
	b := h.batch
	switch s := b.Next().(type) {
	case Take:
		if w.lookFirst && h.early == nil {
			ids, _ := w.progress()
			h.early = w.look(append(ids, idsOf(h.ready)...))
			h.early = append(h.early, ID{}) // it has looked
			h.waiting = false
			return
		}
		w.ask(h, func() func() {
			epoch := w.take()
			return func() { h.epoch = epoch; w.readProgress(h, b, w.tick()) }
		}, func() { w.failed(h); b.Taken(time.Time{}, nil, errUnknown) })
	case Look:
		w.ask(h, func() func() {
			found := w.look(s.IDs)
			if w.lookFirst {
				found, h.early = h.early, nil
			}
			return func() { h.waiting = false; b.Looked(w.tick(), s.IDs, found, nil) }
		}, func() { w.failed(h); b.Looked(time.Time{}, s.IDs, nil, errUnknown) })
	case Send:
		w.send(h, b, s)
	case Done:
		h.waiting, h.batch, h.early = false, nil, nil
		n := len(s.Results)
		done, rest := h.ready[:n], []*row{}
		for i, r := range done {
			if s.Results[i] != nil {
				rest = append(rest, r)
			} else if !slices.Contains(h.unsaved, r) {
				h.unsaved = append(h.unsaved, r)
			}
		}
		h.ready = append(rest, h.ready[n:]...)
	}
}

func (w *world) failed(h *holder) { h.waiting, h.early = false, nil }

func (w *world) readProgress(h *holder, b *Batch, at time.Time) {
	w.ask(h, func() func() {
		ids, stable := w.progress()
		if !stable && !w.unstable {
			return func() { w.readProgress(h, b, at) }
		}
		return func() { h.waiting = false; b.Taken(at, ids, nil) }
	}, func() { w.failed(h); b.Taken(time.Time{}, nil, errUnknown) })
}

func (w *world) look(ids []ID) (found []ID) {
	for _, e := range w.rows {
		for _, id := range ids {
			if id.Seq == e.seq && (id.Event == [16]byte{} || id == IDOf(e.seq, e.id)) {
				found = append(found, id)
			}
		}
	}
	return found
}

func (w *world) send(h *holder, b *Batch, s Send) {
	events := make([]record, len(s.Rows))
	for i, r := range s.Rows {
		events[i] = record{event: h.held[step.Identity{Seq: r.Seq, EventID: r.EventID}].event}
	}
	results := func(err error) []error { return slices.Repeat([]error{err}, len(s.Rows)) }
	lost := func() { w.failed(h); b.Sent(results(errUnknown)) }
	epoch := h.epoch
	end := func() {
		if w.early {
			for _, r := range s.Rows {
				h.unsaved = append(h.unsaved, h.held[step.Identity{Seq: r.Seq, EventID: r.EventID}])
			}
		}
		answered := false
		send := func() {
			w.ask(h, func() func() {
				ok := w.valid(epoch) && w.open != nil
				if ok {
					w.end(committed)
				}
				return func() {
					switch {
					case answered:
					case !ok:
						lost()
					default:
						h.waiting = false
						b.Sent(results(nil))
						if w.beside {
							w.net = append(w.net, func() { w.log = append(w.log, record{progress: s.Progress}) })
						}
					}
					answered = true
				}
			}, func() {
				if !answered {
					answered = true
					lost()
				}
			})
		}
		send()
		if w.twice {
			send()
		}
	}
	produced := func(next func(), records ...record) func() {
		return func() {
			w.ask(h, func() func() {
				if !w.produce(epoch, records...) {
					return lost
				}
				return next
			}, lost)
		}
	}
	if w.beside {
		produced(end, events...)()
		return
	}
	produced(produced(end, record{progress: s.Progress}), events...)()
}

func (w *world) tick() time.Time {
	w.now++
	return time.Unix(0, w.now)
}

func (w *world) read(h *holder) {
	h.reading = true
	at := w.tick()
	w.ask(h, func() func() {
		rows := slices.Clone(w.rows)
		if w.chance(2) {
			rows = rows[:min(len(rows), 2)]
		}
		return func() {
			h.reading = false
			for _, e := range rows {
				if key := (step.Identity{Seq: e.seq, EventID: e.id}); h.held[key] == nil {
					r := &row{step.Row{Seq: e.seq, EventID: e.id, Read: at}, e}
					h.held[key] = r
					i := len(h.ready)
					if h.batch == nil {
						i, _ = slices.BinarySearchFunc(h.ready, r, func(a, b *row) int { return cmp.Compare(a.Seq, b.Seq) })
					}
					h.ready = slices.Insert(h.ready, i, r)
				}
			}
			for _, r := range h.ghosts {
				delete(h.held, step.Identity{Seq: r.Seq, EventID: r.EventID})
			}
			h.ghosts = nil
		}
	}, func() { h.reading = false })
}

func (w *world) delete(h *holder) {
	h.deleting = true
	rows := h.unsaved
	h.unsaved = nil
	drop := func() {
		for _, r := range rows {
			if h.reading && !w.ghosts {
				h.ghosts = append(h.ghosts, r)
			} else {
				delete(h.held, step.Identity{Seq: r.Seq, EventID: r.EventID})
			}
		}
		for _, o := range w.holders { // which may be of one process: it does not tell its leases apart
			o.shard.Deleted(rowsOf(rows)...)
		}
	}
	if w.dropOnSend {
		drop()
	}
	w.ask(h, func() func() {
		for _, r := range rows {
			w.rows = slices.DeleteFunc(w.rows, func(e *event) bool {
				match := e.seq == r.Seq && e.id == r.EventID
				if match {
					w.undurable = append(w.undurable, e)
					if w.commits[e.id] == 0 {
						w.fail("event %s is lost: its row was deleted, and its transaction has not committed", e.id)
					}
				}
				return match
			})
		}
		return func() {
			h.deleting = false
			if !w.dropOnSend {
				drop()
			}
		}
	}, func() { h.deleting, h.unsaved = false, append(rows, h.unsaved...) })
}

func rowsOf(rows []*row) []*step.Row {
	out := make([]*step.Row, len(rows))
	for i, r := range rows {
		out[i] = &r.Row
	}
	return out
}

func idsOf(rows []*row) (ids []ID) {
	for _, r := range rows {
		ids = append(ids, IDOf(r.Seq, r.EventID))
	}
	return ids
}

// pick lets one of them happen, mostly one of the newest.
func (w *world) pick(list *[]func()) {
	n := len(*list)
	if n == 0 {
		return
	}
	i := w.intn(n)
	if !w.calm && !w.chance(3) {
		i = n - 1 - w.intn(min(n, 3))
	}
	f := (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	f()
}

func (w *world) happen() {
	switch x := w.intn(100); {
	case x < 6 && !w.calm: // a writer takes a number
		key := w.intn(2)
		if !slices.ContainsFunc(w.writing, func(e *event) bool { return e.key == key }) {
			w.numbers++
			w.writing = append(w.writing, &event{seq: w.numbers, key: key, id: fmt.Sprint("e", w.tick().UnixNano())})
		}
	case x < 12 && len(w.writing) > 0: // and commits
		i := w.intn(len(w.writing))
		e := w.writing[i]
		w.writing = slices.Delete(w.writing, i, i+1)
		for _, o := range w.events {
			if o.key == e.key {
				e.nth++
			}
		}
		w.events = append(w.events, e)
		w.rows = append(w.rows, e)
		slices.SortStableFunc(w.rows, func(a, b *event) int { return cmp.Compare(a.seq, b.seq) })
	case x < 45:
		if len(w.holders) > 0 {
			w.step(w.holders[w.intn(len(w.holders))])
		}
	case x < 68:
		w.pick(&w.net)
	case x < 90:
		w.pick(&w.answers)
	case x < 94:
		w.ending = nil // the partitions know
	case w.calm:
	case x < 96: // another holder, and maybe the end of an earlier one
		w.hold()
		if len(w.holders) > 3 || w.chance(2) {
			w.holders = slices.Delete(w.holders, 0, 1)
		}
	case x < 97: // transaction.timeout
		if w.open != nil && w.chance(3) {
			w.end(aborted)
			w.epoch++
		}
	case x < 98:
		if w.asyncDelete && w.chance(4) {
			w.rows = append(slices.Clone(w.undurable), w.rows...)
			slices.SortStableFunc(w.rows, func(a, b *event) int { return cmp.Compare(a.seq, b.seq) })
		}
		w.undurable = nil
	case x < 99:
		if w.chance(3) {
			w.saved.rows, w.saved.numbers = slices.Clone(w.rows), w.numbers
		}
	default:
		w.disaster()
	}
}

func (w *world) disaster() {
	switch {
	case w.history.restore && w.chance(4):
		w.loose = true
		w.events = slices.DeleteFunc(w.events, func(e *event) bool { return slices.Contains(w.rows, e) && !slices.Contains(w.saved.rows, e) })
		w.rows, w.writing = slices.Clone(w.saved.rows), nil
		w.numbers = w.saved.numbers
	case w.history.sequence && w.chance(4):
		w.loose = true
		w.numbers = max(0, w.numbers-int64(1+w.intn(5)))
	case w.history.lost && w.chance(4):
		w.loose = true
		w.log = slices.DeleteFunc(w.log, func(r record) bool { return r.event == nil && r.of != w.open && r.of != w.ending })
	}
}

// run returns what went wrong.
func run(intn func(int) int, steps int, b breaks, h histories) string {
	w := &world{breaks: b, history: h, intn: intn, commits: map[string]int{}}
	w.hold()
	for range steps {
		if w.happen(); w.wrong != "" {
			return w.wrong
		}
	}
	w.calm, w.holders = true, w.holders[:0]
	w.hold()
	if w.open != nil {
		w.end(aborted)
		w.epoch++
	}
	for i := 0; i < 20*steps && w.wrong == "" && len(w.rows)+len(w.writing)+len(w.net)+len(w.answers) > 0; i++ {
		w.happen()
	}
	if w.wrong == "" && len(w.rows) > 0 {
		w.fail("%d rows are stuck", len(w.rows))
	}
	last := map[int]int{}
	for _, r := range w.log {
		if r.event == nil || r.of.state != committed {
			continue
		}
		if e := r.event; !w.loose {
			if e.nth < last[e.key] {
				w.fail("event %s overtook another of its key", e.id)
			}
			last[e.key] = e.nth
		}
	}
	for _, e := range w.events {
		if w.commits[e.id] == 0 {
			w.fail("event %s is lost", e.id)
		}
	}
	return w.wrong
}

// TestEachEventIsPublishedOnce: whatever is late, lost or repeated, and whichever relay believes to hold the shard.
func TestEachEventIsPublishedOnce(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 0))
		require.Empty(r, run(rnd.IntN, 1500, breaks{}, histories{}))
	})
}

// TestNoEventIsLostByARestore: of the database, of its sequence alone, or of the progress. Events may be published again.
func TestNoEventIsLostByARestore(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 0))
		require.Empty(r, run(rnd.IntN, 1500, breaks{}, histories{
			restore: rapid.Bool().Draw(r, "restore"), sequence: rapid.Bool().Draw(r, "sequence"), lost: rapid.Bool().Draw(r, "lost"),
		}))
	})
}

// TestWhatEachRuleIsFor: without it, an event is published twice or lost.
func TestWhatEachRuleIsFor(t *testing.T) {
	for name, control := range map[string]struct {
		breaks
		histories
	}{
		"numbers in place of IDs": {breaks{rules: func(r *rules) {
			r.id = func(row *step.Row) ID { return ID{Seq: row.Seq} }
		}}, histories{restore: true}},
		"rows are deleted before the transaction's end is known": {breaks: breaks{early: true}},
		"nobody is fenced":                                        {breaks: breaks{unfenced: true}},
		"the progress stands beside the transaction":              {breaks: breaks{beside: true}},
		"the progress is read before it is stable":                {breaks: breaks{unstable: true}},
		"rows that were read before the shard was taken are sent": {breaks: breaks{rules: func(r *rules) { r.stale = func(*step.Row, time.Time) bool { return false } }}},
		"a transaction's end is sent twice":                       {breaks: breaks{twice: true}},
		"a read that is older than a delete counts":               {breaks: breaks{ghosts: true}},
		"an event leaves the progress when its delete is sent":    {breaks: breaks{dropOnSend: true}},
		"an unknown end of a transaction is taken for a commit":   {breaks: breaks{rules: func(r *rules) { r.unknown = func(error) bool { return false } }}},
		"deletes are not durable":                                 {breaks: breaks{asyncDelete: true}},
		"rows are looked for before the shard is taken":           {breaks: breaks{lookFirst: true}},
		"a delete of an earlier lease counts":                     {breaks: breaks{rules: func(r *rules) { r.same = func(_, _ *step.Row) bool { return true } }}},
		"events leave the progress although their rows are there": {breaks: breaks{rules: func(r *rules) { r.stays = func(bool) bool { return false } }}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(20_000) {
				if wrong := run(rand.New(rand.NewPCG(seed, 1)).IntN, 1500, control.breaks, control.histories); wrong != "" {
					t.Logf("seed %d: %s", seed, wrong)
					return
				}
			}
			assert.Fail(t, "nothing went wrong")
		})
	}
}

// A read between taking the shard and looking may have a row that is gone when its relay looks, because the former relay's delete came
// last. It has left the progress, but must not be sent.
func TestRowThatWasReadBeforeItsRelayLookedIsLookedFor(t *testing.T) {
	t.Parallel()
	at := func(n int64) time.Time { return time.Unix(0, n) }
	gone, other := &step.Row{Seq: 1, EventID: "gone", Read: at(2)}, &step.Row{Seq: 2, EventID: "other", Read: at(2)}
	ids := []ID{IDOf(1, "gone"), IDOf(2, "other")}
	s := New(10)
	b := s.Begin([]*step.Row{other})
	require.Equal(t, Take{}, b.Next())
	b.Taken(at(1), ids[:1], nil)
	require.Equal(t, Look{ids[:1]}, b.Next())
	b.Looked(at(3), ids[:1], nil, nil)
	require.Equal(t, Look{ids[1:]}, b.Next())
	b.Looked(at(4), ids[1:], ids[1:], nil)
	require.Equal(t, Send{[]*step.Row{other}, ids[1:]}, b.Next())
	b.Sent([]error{nil})

	b = s.Begin([]*step.Row{gone})
	require.Equal(t, Look{ids[:1]}, b.Next())
	b.Looked(at(5), ids[:1], nil, nil)
	assert.Equal(t, Done{[]error{nil}}, b.Next())
}

func TestEncoding(t *testing.T) {
	t.Parallel()
	want := []ID{IDOf(1, "a"), IDOf(1<<40, "b"), IDOf(-1, "")}
	got, err := Decode(Encode(want))
	require.NoError(t, err)
	assert.Equal(t, want, got)
	got, err = Decode(nil)
	require.NoError(t, err)
	assert.Empty(t, got)
	_, err = Decode([]byte{2})
	require.ErrorContains(t, err, "use the version of Millrace that has written it")
	_, err = Decode(Encode(want)[:30])
	require.Error(t, err)
	assert.Len(t, slices.Collect(maps.Keys(map[ID]bool{IDOf(1, "a"): true, IDOf(1, "b"): true, IDOf(2, "a"): true})), 3)
}
