package wal

import (
	"slices"
	"sync"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/gaps"
	"github.com/millrace-go/millrace/outbox/internal/snapshot"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

// Row is a row that the WAL has shown.
type Row struct {
	Shard       int16
	Transaction uint32 // that wrote it
	Event       *step.Event
}

// weight is what the row counts in the buffer's limit.
func (r Row) weight() int { return r.Event.Size + len(r.Event.Key) + rowWeight }

// tableEvery is how often each shard is read from the table at least.
const tableEvery = 5 * time.Second

// rowWeight is about what a row takes beside its key, headers and payload.
const rowWeight = 400

// Buffer holds the committed rows that the WAL has shown and the relay has not read. It decides which reads of a shard they can answer. It
// does no I/O and has no clock. It is safe for concurrent use.
//
// The buffer can answer for a shard once it and the reads of the table together have seen every row. That takes two reads of the table.
// Before the first one the buffer begins to keep the shard's rows, and that read lists the transactions that have the outbox open for
// writing. The stream may have shown those transactions before the buffer kept anything. So the second read begins after all of them have
// ended, and sees their rows. Every row that it does not see comes from the stream.
//
// A transaction is in the WAL before others can see it, and waits for synchronous standbys meanwhile. The buffer gives its rows out only when
// a snapshot shows it. So a row is never published before it is as durable as its transaction asked for, and its delete finds it.
type Buffer struct {
	mu            sync.Mutex
	rules         rules
	limit         int
	bytes         int
	serverStarted time.Time // the stream's server; zero: there is no stream
	late          bool      // the stream is behind the table
	shards        map[int16]*shard
	spills        int64
}

// rules are decisions that tests replace, to show why they are needed.
type rules struct {
	settled func(now, before gaps.Writers) bool           // the transactions of before have ended
	read    func(s snapshot.Snapshot, writer uint32) bool // the table showed what it wrote
	visible func(s snapshot.Snapshot, writer uint32) bool // others see what it wrote
	covers  func(q step.Request) bool                     // the WAL may answer the request
	since   func(learned, sent time.Time) time.Time       // when a row that is handed out was surely not published
}

// shard is what the buffer knows of a shard.
type shard struct {
	step.Ref
	state   state
	looked  time.Time         // when the table was last read
	found   bool              // the last read of the table returned all rows
	open    gaps.Writers      // that were open at a read since the shard is kept; nil: there was none
	seen    snapshot.Snapshot // what it shows was read from the table
	learned time.Time         // when the read of seen was sent
	rows    []Row
	bytes   int
}

type state int

const (
	ignored  state = iota // what the WAL shows of the shard is dropped
	kept                  // it is kept, and earlier rows may be missing
	complete              // the WAL answers reads
)

// NewBuffer returns a buffer that holds rows of about limit bytes.
func NewBuffer(limit int) *Buffer {
	return &Buffer{limit: limit, shards: map[int16]*shard{}, rules: rules{
		settled: func(now, before gaps.Writers) bool { return !now.AnyOf(before) },
		read:    snapshot.Snapshot.Shows, visible: snapshot.Snapshot.Shows,
		covers: func(q step.Request) bool { return !q.Table && !q.Scan },
		since:  func(learned, _ time.Time) time.Time { return learned },
	}}
}

// Begin starts with a stream from that server.
func (b *Buffer) Begin(serverStarted time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serverStarted, b.late, b.bytes, b.shards = serverStarted, false, 0, map[int16]*shard{}
}

// End forgets everything: the stream has ended.
func (b *Buffer) End() { b.Begin(time.Time{}) }

// ServerStarted returns when the stream's server started; zero: there is no stream.
func (b *Buffer) ServerStarted() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.serverStarted
}

// Streams reports whether there is a stream that is not behind the table.
func (b *Buffer) Streams() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.serverStarted.IsZero() && !b.late
}

// SetLate says whether the stream is behind the table. Meanwhile the table answers.
func (b *Buffer) SetLate(late bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.late = late
}

// Forget makes the table answer the next reads, because what the WAL has shown may have been removed.
func (b *Buffer) Forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.shards {
		b.ignore(s)
	}
}

// Spills counts how often a shard's rows were dropped because there were too many.
func (b *Buffer) Spills() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spills
}

// Complete returns for how many shards the WAL answers.
func (b *Buffer) Complete() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.shards {
		if s.state == complete {
			n++
		}
	}
	return n
}

// Add adds rows of a committed transaction.
func (b *Buffer) Add(rows []Row) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range rows {
		if s := b.shards[r.Shard]; s != nil && s.state != ignored {
			s.rows = append(s.rows, r)
			s.bytes += r.weight()
			b.bytes += r.weight()
		}
	}
	for b.bytes > b.limit {
		var most *shard
		for _, s := range b.shards {
			if most == nil || s.bytes > most.bytes {
				most = s
			}
		}
		b.spills++
		b.ignore(most)
	}
}

func (b *Buffer) ignore(s *shard) {
	b.bytes -= s.bytes
	s.state, s.open, s.seen, s.rows, s.bytes = ignored, nil, snapshot.Snapshot{}, nil, 0
}

// Answers reports whether the WAL can answer all requests, and whether it has nothing for them. It cannot if a shard was not read from the
// table for tableEvery: rows stay the truth, whatever becomes of the stream.
func (b *Buffer) Answers(requests []step.Request, now time.Time) (yes, nothing bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.answers(requests, now)
}

func (b *Buffer) answers(requests []step.Request, now time.Time) (yes, nothing bool) {
	if b.serverStarted.IsZero() || b.late {
		return false, false
	}
	rows := 0
	for _, q := range requests {
		s := b.shards[q.Shard]
		if s == nil || s.Ref != q.Ref || s.state != complete || !b.rules.covers(q) || now.Sub(s.looked) >= tableEvery {
			return false, false
		}
		rows += len(s.rows)
	}
	return true, rows == 0
}

// Take answers the requests from the buffer. It returns what a read of the table would return if it saw exactly the transactions that both
// the snapshot and the stream show. Call it right after taking the snapshot on that server. more lists the shards with further rows, and
// waiting those with rows that are not visible yet. ok is false if the buffer cannot answer.
func (b *Buffer) Take(requests []step.Request, visible snapshot.Snapshot, serverStarted, sent time.Time) (found []step.Found, more, waiting []int64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if yes, _ := b.answers(requests, sent); !yes || !serverStarted.Equal(b.serverStarted) {
		return nil, nil, nil, false
	}
	found = make([]step.Found, len(requests))
	for i, q := range requests {
		s := b.shards[q.Shard]
		further, waits := b.take(s, q, &found[i], visible, sent)
		if further {
			more = append(more, int64(q.Shard))
		}
		if waits {
			waiting = append(waiting, int64(q.Shard))
		}
	}
	return found, more, waiting, true
}

// take moves what the request asks for to found, and drops what was read from the table.
func (b *Buffer) take(s *shard, q step.Request, found *step.Found, visible snapshot.Snapshot, sent time.Time) (more, waits bool) {
	listed := map[int64]bool{}
	if len(s.rows) > 0 {
		for _, n := range q.List {
			listed[n] = true
		}
	}
	var above, rest []Row
	for _, r := range s.rows {
		switch {
		case b.rules.read(s.seen, r.Transaction):
		case !b.rules.visible(visible, r.Transaction):
			rest, waits = append(rest, r), true
		case r.Event.Seq > q.From:
			above = append(above, r)
		case listed[r.Event.Seq]:
			found.Listed = append(found.Listed, handOut(r, q, b.rules.since(s.learned, sent)))
		}
	}
	bySeq := func(x, y *step.Event) int { return int(min(max(x.Seq-y.Seq, -1), 1)) }
	slices.SortStableFunc(found.Listed, bySeq)
	slices.SortStableFunc(above, func(x, y Row) int { return bySeq(x.Event, y.Event) })
	n, bytes := 0, 0
	for ; n < len(above) && n < q.Limit && (n == 0 || bytes < q.Bytes); n++ {
		bytes += above[n].Event.Size
		found.Above = append(found.Above, handOut(above[n], q, b.rules.since(s.learned, sent)))
	}
	s.rows = slices.Concat(rest, above[n:])
	b.bytes -= s.bytes
	s.bytes = 0
	for _, r := range s.rows {
		s.bytes += r.weight()
	}
	b.bytes += s.bytes
	return n < len(above), waits
}

// handOut returns the row's event, as a read of the table at that time would. The row became visible after the table was read for seen. So
// it is as old as that read: another relay may have published and deleted it since.
func handOut(r Row, q step.Request, at time.Time) *step.Event {
	r.Event.Read = at
	if slices.Contains(q.Hide, r.Event.Topic) {
		r.Event.Headers, r.Event.Payload = nil, nil
	}
	return r.Event
}

// Prepare says that the table is about to be read for the requests, and returns whether that read must list the open writers.
func (b *Buffer) Prepare(requests []step.Request) (writers bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.serverStarted.IsZero() {
		return false
	}
	for _, q := range requests {
		s := b.shards[q.Shard]
		if s == nil {
			s = &shard{}
			b.shards[q.Shard] = s
		}
		if q.Scan || s.Ref != q.Ref { // what the relay has read does not count any more
			b.ignore(s)
			s.Ref, s.found = q.Ref, false
		}
		if s.state == ignored && s.found {
			s.state = kept
		}
		writers = writers || s.state == kept
	}
	return writers
}

// Learn says what a read of the table has found, what its snapshot showed before it read the rows, when its server started and when it was
// sent. It returns the shards that should be read again soon, so that the buffer can answer for them.
func (b *Buffer) Learn(requests []step.Request, a step.Answer, before snapshot.Snapshot, serverStarted, sent time.Time) (again []int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, q := range requests {
		s := b.shards[q.Shard]
		if s == nil || s.Ref != q.Ref {
			continue
		}
		s.looked = sent
		if s.found = len(a.Shards[i].Above) < q.Limit; !serverStarted.Equal(b.serverStarted) || !s.found && (q.Table || s.state != complete) {
			b.ignore(s)
			continue
		}
		switch {
		case s.state == complete && s.found:
			s.seen, s.learned = before, sent
		case s.state == kept && s.open == nil:
			s.open = a.Writers
		case s.state == kept && a.Writers != nil && b.rules.settled(a.Writers, s.open):
			s.state, s.open, s.seen, s.learned = complete, nil, before, sent
		}
		if s.state == complete {
			b.prune(s)
		} else {
			again = append(again, int64(q.Shard))
		}
	}
	return again
}

// prune drops the rows that the table has shown.
func (b *Buffer) prune(s *shard) {
	s.rows = slices.DeleteFunc(s.rows, func(r Row) bool {
		read := b.rules.read(s.seen, r.Transaction)
		if read {
			s.bytes -= r.weight()
			b.bytes -= r.weight()
		}
		return read
	})
}
