package progress

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

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

func (w *world) hold() {
	h := &holder{shard: New(6, 18), held: map[step.Identity]*row{}}
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
	if len(s.Progress) > h.shard.most {
		w.fail("the progress has %d events", len(s.Progress))
	}
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
