package progress

import (
	"cmp"
	"fmt"
	"slices"
	"time"
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
type histories struct{ restore, sequence, lost, behind bool }

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
	strict      bool // no disaster excuses that an event is published twice
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
		if w.commits[e.id]++; w.commits[e.id] > 1 && (!w.loose || w.strict) {
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

func (w *world) tick() time.Time {
	w.now++
	return time.Unix(0, w.now)
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
	case w.history.behind && w.chance(4):
		w.fallBack()
	}
}

// fallBack drops the newest committed records of the progress, and leaves an older one. The election of a leader that has missed them does so.
func (w *world) fallBack() {
	var of []int
	for i, r := range w.log {
		if r.progress != nil && r.of != nil && r.of.state == committed && r.of != w.ending {
			of = append(of, i)
		}
	}
	if len(of) < 2 {
		return
	}
	w.loose = true
	newer := of[1+w.intn(len(of)-1):]
	for _, i := range slices.Backward(newer) {
		w.log = slices.Delete(w.log, i, i+1)
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
