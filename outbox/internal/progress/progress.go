// Package progress decides what a relay sends in transactions of the broker, so that who reads committed records alone gets each
// event once. It does no I/O, has no clock and starts no goroutine.
//
// A transaction carries events of one shard and the shard's progress: the events of the shard that are published and may still
// have a row. So the broker knows which rows are published, and no row is deleted before its transaction is known to have
// committed. Whoever takes a shard first ends what others have begun in it, and then reads the progress. This order makes a row
// published once:
//
//  1. Take: no earlier holder can commit anything any more, and the progress is that of all that was committed.
//  2. Look: of the events in the progress, only those that still have a row stay in it. A row that was read before Take may have
//     been published and deleted since: it is looked for, too.
//  3. A row in the progress is never sent, and may be deleted. The others are sent, with the progress.
//  4. An answer other than success is no answer: the transaction may have committed. The next batch begins with Take.
//  5. An event leaves the progress when its row is known to be deleted for good, or when Look does not find it.
//
// The lease of the shard is for order and economy. Safety needs the broker's fence alone.
package progress

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/step"
)

// ID is a row: its number, and the beginning of a hash of its event's ID. The number finds the row. It does not identify it: a
// sequence may be set back.
type ID struct {
	Seq   int64
	Event [16]byte
}

// IDOf returns the ID of an event's row.
func IDOf(seq int64, eventID string) ID {
	sum := sha256.Sum256([]byte(eventID))
	return ID{seq, [16]byte(sum[:])}
}

// ErrFull is the result of events that were not sent because too many published ones wait for their deletes.
var ErrFull = errors.New("too many published events still have their rows: see why the relay cannot delete them")

// rules are decisions that the tests of this package replace, to show what they are for.
type rules struct {
	id      func(*step.Row) ID
	stale   func(row *step.Row, taken time.Time) bool // it may be gone
	unknown func(error) bool                          // the transaction may have committed, or not
	same    func(known, deleted *step.Row) bool       // the delete is that of the row in the progress
	stays   func(there bool) bool                     // an event of the progress, whose row was looked for
}

// Shard is the progress of a shard for the time of one lease. One goroutine uses it at a time.
type Shard struct {
	full  int // the progress is pruned before it has more events
	most  int // it never has more
	rules rules

	open   bool      // nobody has taken the shard since this relay did, as far as it knows
	sure   time.Time // rows that were read before may be published, or be gone: they are looked for
	looked bool      // the progress has been compared with the rows since
	rows   map[ID]*step.Row
}

// New returns the progress of a shard that is not taken yet. Before the progress has more than full events, it is pruned. It never has more than
// most.
func New(full, most int) *Shard {
	return &Shard{full: full, most: most, rows: map[ID]*step.Row{}, rules: rules{
		id:      func(r *step.Row) ID { return IDOf(r.Seq, r.EventID) },
		stale:   func(r *step.Row, sure time.Time) bool { return !r.Read.After(sure) },
		unknown: func(err error) bool { return err != nil },
		same:    func(known, deleted *step.Row) bool { return known == deleted },
		stays:   func(there bool) bool { return there },
	}}
}

// Deleted notes rows that are deleted for good. Of an earlier lease's rows it takes no notice: a read of this lease may still
// return them.
func (s *Shard) Deleted(rows ...*step.Row) {
	for _, r := range rows {
		if id := s.rules.id(r); s.rules.same(s.rows[id], r) {
			delete(s.rows, id)
		}
	}
}

// Step is what to do next for a batch.
type Step interface{ step() }

type (
	// Take ends what others have begun in the shard, and reads the progress that was committed last. Taken tells.
	Take struct{}
	// Look asks which of the rows there are, in the outbox and among its failed events, in one snapshot. Looked tells.
	Look struct{ IDs []ID }
	// Send commits these rows of the batch and the progress in one transaction. Sent tells.
	Send struct {
		Rows     []*step.Row
		Progress []ID
	}
	// Done is the end of the batch, with a result for each row. nil: it is published, and may be deleted.
	Done struct{ Results []error }
)

func (Take) step() {}
func (Look) step() {}
func (Send) step() {}
func (Done) step() {}

// Batch is rows that are to be published, in order.
type Batch struct {
	shard   *Shard
	rows    []*step.Row
	ids     []ID        // theirs
	there   map[ID]bool // what Look has found, since Take
	sending []int       // places of rows
	pruned  bool
	done    bool
	results []error
}

// Begin begins a batch. The one before has to be done.
func (s *Shard) Begin(rows []*step.Row) *Batch {
	ids := make([]ID, len(rows))
	for i, r := range rows {
		ids[i] = s.rules.id(r)
	}
	return &Batch{shard: s, rows: rows, ids: ids, results: make([]error, len(rows))}
}

// Next returns what to do now.
func (b *Batch) Next() Step {
	s := b.shard
	switch {
	case b.done:
		return Done{b.results}
	case !s.open:
		return Take{}
	}
	if ids := b.unsure(); len(ids) > 0 {
		return Look{ids}
	}
	s.looked = true
	b.sending = nil
	for i, r := range b.rows {
		id := b.ids[i]
		there, asked := b.there[id]
		if _, published := s.rows[id]; published {
			s.rows[id] = r
		} else if there || !asked {
			b.sending = append(b.sending, i)
		}
	}
	switch size := len(s.rows) + len(b.sending); {
	case len(b.sending) == 0:
		b.done = true
		return Done{b.results}
	case size <= min(s.full, s.most):
		return b.send()
	case !b.pruned: // rows that others have deleted leave the progress
		b.pruned, s.open = true, false
		return Take{}
	}
	// The shard goes on: rows that are not published may come before the published ones, and these are deleted in their turn.
	s.full = max(s.full, 2*len(s.rows)) // for the next prune
	room := max(s.most-len(s.rows), 0)
	if len(b.sending) > room {
		for _, i := range b.sending[room:] {
			b.results[i] = ErrFull
		}
		b.sending = b.sending[:room]
	}
	if room == 0 {
		b.done, s.open = true, false
		return Done{b.results}
	}
	return b.send()
}

// unsure lists what has to be looked for.
func (b *Batch) unsure() (ids []ID) {
	s := b.shard
	if !s.looked {
		ids = slices.Collect(maps.Keys(s.rows))
	}
	for i, r := range b.rows {
		id := b.ids[i]
		if _, known := s.rows[id]; known || !s.rules.stale(r, s.sure) {
			continue
		}
		if _, asked := b.there[id]; !asked {
			ids = append(ids, id)
		}
	}
	return ids
}

func (b *Batch) send() Step {
	rows := make([]*step.Row, len(b.sending))
	progress := slices.AppendSeq(make([]ID, 0, len(b.shard.rows)+len(rows)), maps.Keys(b.shard.rows))
	for i, at := range b.sending {
		rows[i] = b.rows[at]
		progress = append(progress, b.ids[at])
	}
	return Send{rows, progress}
}

// end gives what was not sent its result, and has the shard taken again.
func (b *Batch) end(err error) {
	b.done, b.shard.open = true, false
	if b.sending == nil {
		for i := range b.results {
			b.results[i] = err
		}
	}
	for _, i := range b.sending {
		b.results[i] = err
	}
}

// Taken ends Take. From at on nobody else could commit.
func (b *Batch) Taken(at time.Time, progress []ID, err error) {
	s := b.shard
	if err != nil {
		b.end(fmt.Errorf("take the shard's transactions: %w", err))
		return
	}
	s.open, s.sure, s.looked, b.there = true, at, false, map[ID]bool{}
	known := s.rows
	s.rows = make(map[ID]*step.Row, len(progress))
	for _, id := range progress {
		s.rows[id] = known[id]
	}
}

// Looked ends Look: those of its rows that there were at some time before at.
func (b *Batch) Looked(at time.Time, asked, found []ID, err error) {
	s := b.shard
	if err != nil {
		b.end(fmt.Errorf("look for rows that may be published: %w", err))
		return
	}
	if b.there == nil {
		b.there = map[ID]bool{}
	}
	for _, id := range asked {
		b.there[id] = false
	}
	for _, id := range found {
		b.there[id] = true
	}
	if !s.looked {
		maps.DeleteFunc(s.rows, func(id ID, _ *step.Row) bool { return !s.rules.stays(b.there[id]) })
		s.looked = true
		s.sure = at // a read before may have rows that have left the progress, because they are gone
	}
}

// Sent ends Send, with a result for each of its rows. Either all are nil, and the transaction has committed, or nobody knows.
func (b *Batch) Sent(results []error) {
	s := b.shard
	b.done = true
	for i, at := range b.sending {
		b.results[at] = results[i]
		if s.rules.unknown(results[i]) {
			s.open = false
		}
	}
	if !s.open {
		return
	}
	for _, at := range b.sending {
		b.results[at] = nil
		s.rows[b.ids[at]] = b.rows[at]
	}
}

// Name names the transactions of an outbox after the database, the schema and the server's identifier, so that another outbox on the
// same brokers does not end them. The identifier stays the same when a standby takes over.
func Name(database, schema, server string) string {
	encode := func(name string) string { // the characters that a topic's name may not contain
		return unnameable.ReplaceAllStringFunc(name, func(s string) string { return fmt.Sprintf("-%x-", s) })
	}
	return encode(database) + "." + encode(schema) + "." + server
}

var unnameable = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

// idSize is the bytes of an encoded ID, and version the first byte of an encoded progress.
const (
	idSize  = 8 + 16
	version = 1
)

// Fit is how many events the progress may have, so that Encode returns at most size bytes.
func Fit(size int) int { return (size - 1) / idSize }

// Encode writes a progress.
func Encode(ids []ID) []byte {
	b := append(make([]byte, 0, 1+idSize*len(ids)), version)
	for _, id := range ids {
		b = binary.BigEndian.AppendUint64(b, uint64(id.Seq))
		b = append(b, id.Event[:]...)
	}
	return b
}

// Decode reads a progress. No bytes are that of a shard of which nothing was published.
func Decode(b []byte) ([]ID, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if b[0] != version || (len(b)-1)%idSize != 0 {
		return nil, fmt.Errorf("read the shard's progress: it has version %d and %d bytes, which this relay does not know: use the version of Millrace that has written it, or a later one", b[0], len(b))
	}
	ids := make([]ID, 0, len(b)/idSize)
	for b = b[1:]; len(b) > 0; b = b[idSize:] {
		ids = append(ids, ID{int64(binary.BigEndian.Uint64(b)), [16]byte(b[8:idSize])})
	}
	return ids, nil
}
