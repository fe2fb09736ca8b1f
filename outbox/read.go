package outbox

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/outbox/internal/store"
)

// row is an event as it stands in the table.
type row struct {
	place   [6]byte // its ctid
	seq     int64
	eventID string
	topic   string
	key     string
	headers []byte
	payload []byte // nil when it was left out
	size    int    // bytes of headers and payload, also where they were left out here; 0: not known
	written time.Time
}

// request is what a read is to find in one shard.
type request struct {
	shard int16
	scan  bool    // ask for the sequence's value
	from  int64   // rows above it
	limit int     // that many of them
	list  []int64 // and these rows

	hide   []string // topics whose payloads are left out
	rescan bool     // from the start, with the memory kept
	fetch  []int64  // those of the list whose payloads were left out before
}

// found is what it found.
type found struct {
	request
	last int64
	rows []row // in order of their numbers
	more bool  // it stopped at its limit
}

// reader reads shards. Reads follow one another: it is not safe for concurrent use.
type reader struct {
	pool *pgxpool.Pool
	sql  readStatements

	// trusting publishes what may not be on disk yet: what a test uses to show what the check is for.
	trusting bool

	server time.Time // when it started
	// What transactions before durable have committed is on disk, and what those before pending have once the log is there
	// up to pendingAt.
	durable, pending, pendingAt uint64
}

type readStatements struct{ read, readMore, before, after, writers, last, flush string }

func newReader(pool *pgxpool.Pool, schema string) *reader {
	query := func(name string) string { return store.Query(name, schema) }
	return &reader{pool: pool, sql: readStatements{
		read: query("read"), readMore: query("read_more"), before: query("read_before"), after: query("read_after"),
		writers: query("writers"), last: query("last_numbers"), flush: query("flush"),
	}}
}

// answer is what one round trip found.
type answer struct {
	shards  []found
	writers writers   // who was there before; nil when it was not asked
	now     time.Time // the server's
	moved   bool      // it is another server than before, or has restarted: nothing remembered holds
}

// read reads the shards in one round trip, one transaction. A row is visible before it is durable when its transaction
// committed with synchronous_commit = off; a crash of the server would undo what was sent. So what is returned is on disk.
func (r *reader) read(ctx context.Context, requests []request, askWriters bool) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	var (
		a            = answer{shards: make([]found, len(requests))}
		scans        []int16
		log          logPosition
		server       time.Time
		transactions []uint32 // that wrote the rows
	)
	byShard := map[int16]*found{}
	for i, q := range requests {
		a.shards[i].request = q
		byShard[q.shard] = &a.shards[i]
		if q.scan {
			scans = append(scans, q.shard)
		}
	}
	statements := []statement{begin}
	if len(scans) > 0 { // before the writers
		statements = append(statements, statement{sql: r.sql.last, args: []argument{int2s(scans)}, row: func(v [][]byte) error {
			byShard[asInt2(v[0])].last = asInt8(v[1])
			return nil
		}})
	}
	if askWriters { // before the rows
		a.writers = writers{}
		statements = append(statements, statement{sql: r.sql.writers, row: func(v [][]byte) error {
			a.writers[string(v[0])] = struct{}{}
			return nil
		}})
	}
	statements = append(statements, statement{sql: r.sql.before, row: func(v [][]byte) error {
		log.oldest = asUint8(v[0])
		return nil
	}})
	for i := range a.shards {
		statements = append(statements, r.rows(&a.shards[i], &transactions))
	}
	statements = append(statements, statement{sql: r.sql.after, row: func(v [][]byte) error {
		log.inserted, log.flushed, a.now, server = asUint8(v[0]), asUint8(v[1]), asTime(v[2]), asTime(v[3])
		return nil
	}}, commit)
	if err := roundTrip(ctx, r.pool, statements...); err != nil {
		return answer{}, err
	}
	if !server.Equal(r.server) {
		a.moved = !r.server.IsZero()
		r.server, r.durable, r.pending, r.pendingAt = server, 0, 0, 0
	}
	r.note(log)
	if r.trusting || log.flushed >= log.inserted || !slices.ContainsFunc(transactions, r.unproven) {
		return a, nil
	}
	// One that is not on disk would be undone by a crash after it was sent. If this fails, all is read again.
	if err := roundTrip(ctx, r.pool, begin, statement{sql: r.sql.flush}, commit); err != nil {
		return answer{}, err
	}
	r.durable = log.oldest
	return a, nil
}

// unproven reports whether a transaction may not be on disk. IDs are compared as PostgreSQL does, around the circle.
func (r *reader) unproven(transaction uint32) bool {
	return r.durable == 0 || int32(uint32(r.durable)-transaction) <= 0
}

// logPosition is where the server's log was when rows were read.
type logPosition struct {
	oldest   uint64 // the oldest transaction that was running before
	inserted uint64 // the end of the log after
	flushed  uint64 // what of it was on disk
}

// note learns which transactions are on disk: most rows of a backlog need no flush of their own.
func (r *reader) note(log logPosition) {
	switch {
	case log.flushed >= log.inserted:
		r.durable, r.pendingAt = log.oldest, 0
	case r.pendingAt == 0:
		r.pending, r.pendingAt = log.oldest, log.inserted
	case log.flushed >= r.pendingAt:
		r.durable = r.pending
		r.pending, r.pendingAt = log.oldest, log.inserted
	}
}

// rows is the statement that reads one shard.
func (r *reader) rows(f *found, transactions *[]uint32) statement {
	s := statement{sql: r.sql.read, args: []argument{smallint(f.shard), bigint(f.from), integer(f.limit)}}
	if len(f.list)+len(f.hide) > 0 {
		s.sql, s.args = r.sql.readMore, append(s.args, int8s(f.list), texts(f.hide))
	}
	above, bytes := 0, 0
	topic := ""
	s.row = func(v [][]byte) error {
		e := row{seq: asInt8(v[2]), eventID: string(v[3]), key: string(v[5]), written: asTime(v[8])}
		copy(e.place[:], v[0])
		if string(v[4]) != topic { // usually the one before's
			topic = string(v[4])
		}
		e.topic = topic
		if v[7] != nil {
			e.size = len(v[6]) + len(v[7])
		}
		// What goes beyond the bound is left out here and read again when there is room.
		if bytes += len(v[6]) + len(v[7]); v[7] != nil && (bytes <= batchBytes || len(f.rows) == 0) {
			e.headers, e.payload = someHeaders(v[6]), append(make([]byte, 0, len(v[7])), v[7]...)
		}
		if e.seq > f.from {
			above++
		}
		*transactions = append(*transactions, uint32(asInt4(v[1])))
		f.rows = append(f.rows, e)
		return nil
	}
	s.done = func(pgconn.CommandTag) {
		f.more = above >= f.limit
		if len(f.list) > 0 {
			slices.SortFunc(f.rows, func(a, b row) int { return int(a.seq - b.seq) })
		}
	}
	return s
}

// someHeaders returns a copy, or nil where there are none.
func someHeaders(b []byte) []byte {
	if string(b) == "{}" {
		return nil
	}
	return bytes.Clone(b)
}
