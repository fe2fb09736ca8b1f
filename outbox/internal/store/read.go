package store

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/outbox/internal/gaps"
	"github.com/millrace-go/millrace/outbox/internal/snapshot"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

// Reader reads shards for a relay. It is not safe for concurrent use.
type Reader struct {
	// Undurable reports whether a committed transaction may not be on disk yet. A test replaces it to show that the check is needed.
	Undurable func(transaction uint32) bool

	// Snapshot was taken before the last read read its rows. So that read saw every row that Snapshot shows.
	Snapshot snapshot.Snapshot
	// ServerStarted is when the server of the last answer started.
	ServerStarted time.Time

	pool *pgxpool.Pool
	sql  readStatements

	// Commits of transactions before durable are flushed. Those before pending are flushed once the flush position reaches pendingAt.
	durable, pending, pendingAt uint64
}

type readStatements struct{ read, readMore, before, after, writers, last, flush, visible string }

// NewReader returns a reader of the schema's outbox.
func NewReader(pool *pgxpool.Pool, schema string) *Reader {
	query := func(name string) string { return Query(name, schema) }
	r := &Reader{pool: pool, sql: readStatements{
		read: query("read"), readMore: query("read_more"), before: query("read_before"), after: query("read_after"),
		writers: query("writers"), last: query("last_numbers"), flush: query("flush"), visible: query("read_visible"),
	}}
	r.Undurable = r.undurable
	return r
}

// Read reads the shards in one round trip, in one transaction. With synchronous_commit = off, a row is visible before it is durable;
// after a crash of the server, an event would have been sent that does not exist. So Read returns only rows that are on disk.
func (r *Reader) Read(ctx context.Context, requests []step.Request, askWriters bool) (step.Answer, error) {
	sent := time.Now()
	ctx, cancel := context.WithTimeout(ctx, ExchangeTimeout)
	defer cancel()
	var (
		a            = step.Answer{Shards: make([]step.Found, len(requests))}
		scans        []int16
		log          walPosition
		server       time.Time
		transactions []uint32 // that wrote the rows
	)
	byShard := map[int16]*step.Found{}
	for i, q := range requests {
		byShard[q.Shard] = &a.Shards[i]
		if q.Scan {
			scans = append(scans, q.Shard)
		}
	}
	statements := []statement{begin}
	if len(scans) > 0 { // before the writers
		statements = append(statements, statement{sql: r.sql.last, args: []argument{int2s(scans)}, row: func(v [][]byte) error {
			byShard[asInt2(v[0])].Last = asInt8(v[1])
			return nil
		}})
	}
	if askWriters { // before the rows
		a.Writers = gaps.Writers{}
		statements = append(statements, statement{sql: r.sql.writers, row: func(v [][]byte) error {
			a.Writers[string(v[0])] = struct{}{}
			return nil
		}})
	}
	statements = append(statements, statement{sql: r.sql.before, row: func(v [][]byte) (err error) {
		r.Snapshot, err = snapshot.Parse(v[0])
		log.oldest = r.Snapshot.Oldest
		return err
	}})
	for i := range requests {
		statements = append(statements, r.rows(&requests[i], &a.Shards[i], &transactions, sent))
	}
	statements = append(statements, statement{sql: r.sql.after, row: func(v [][]byte) error {
		log.inserted, log.flushed, a.Now, server = asUint8(v[0]), asUint8(v[1]), asTime(v[2]), asTime(v[3])
		return nil
	}}, commit)
	if err := roundTrip(ctx, r.pool, statements...); err != nil {
		r.durable, r.pendingAt = 0, 0
		return step.Answer{}, err
	}
	a.Moved = r.moved(server)
	r.note(log)
	if log.flushed >= log.inserted || !slices.ContainsFunc(transactions, r.Undurable) {
		return a, nil
	}
	// A row that is not on disk could be undone by a crash after it was sent. If the flush fails, everything is read again.
	if err := roundTrip(ctx, r.pool, begin, statement{sql: r.sql.flush}, commit); err != nil {
		r.durable, r.pendingAt = 0, 0
		return step.Answer{}, err
	}
	r.durable = log.oldest
	return a, nil
}

// moved reports whether another server has answered, or the same after a restart.
func (r *Reader) moved(server time.Time) bool {
	if server.Equal(r.ServerStarted) {
		return false
	}
	moved := !r.ServerStarted.IsZero()
	r.ServerStarted, r.durable, r.pending, r.pendingAt = server, 0, 0, 0
	return moved
}

// Visible takes a Snapshot without reading rows. The answer has the server's time.
func (r *Reader) Visible(ctx context.Context) (a step.Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, ExchangeTimeout)
	defer cancel()
	err = roundTrip(ctx, r.pool, statement{sql: r.sql.visible, row: func(v [][]byte) (err error) {
		r.Snapshot, err = snapshot.Parse(v[0])
		a.Now, a.Moved = asTime(v[1]), r.moved(asTime(v[2]))
		return err
	}})
	return a, err
}

// undurable compares transaction IDs as PostgreSQL does, modulo 2^32.
func (r *Reader) undurable(transaction uint32) bool {
	return r.durable == 0 || int32(uint32(r.durable)-transaction) <= 0
}

// walPosition is the WAL's position at a read.
type walPosition struct {
	oldest   uint64 // the oldest transaction that was running before the read
	inserted uint64 // the end of the WAL after the read
	flushed  uint64 // the flushed part of it
}

// note records which transactions are on disk, so that most rows of a backlog need no flush.
func (r *Reader) note(log walPosition) {
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

// rows returns the statement that reads one shard.
func (r *Reader) rows(q *step.Request, f *step.Found, transactions *[]uint32, sent time.Time) statement {
	s := statement{sql: r.sql.read, args: []argument{smallint(q.Shard), bigint(q.From), integer(q.Limit), bigint(int64(q.Each)), texts(q.Hide)}}
	if q.Each == 0 {
		s.sql, s.args[3] = r.sql.readMore, bigint(int64(q.Bytes))
		s.args = append(s.args, int8s(q.List), text(q.Drain), bigint(q.DrainFrom), integer(q.DrainLimit))
	}
	topic := ""
	var ids [128]byte
	s.row = func(v [][]byte) error {
		both := string(append(append(ids[:0], v[3]...), v[5]...)) // one allocation
		e := &step.Event{Row: step.Row{Seq: asInt8(v[2]), EventID: both[:len(v[3])], Key: both[len(v[3]):], Written: asTime(v[9]), Read: sent}}
		copy(e.Place[:], v[0])
		if string(v[4]) != topic { // most rows have the topic of the previous row
			topic = string(v[4])
		}
		e.Topic = topic
		if v[7] == nil {
			e.Size = asInt4(v[8])
		} else {
			e.Size, e.Headers, e.Payload = len(v[6])+len(v[7]), someHeaders(v[6]), payload(v[7])
		}
		if x := uint32(asInt4(v[1])); len(*transactions) == 0 || x != (*transactions)[len(*transactions)-1] {
			*transactions = append(*transactions, x)
		}
		switch {
		case q.Each > 0 || asInt4(v[10]) == 1:
			f.Above = append(f.Above, e)
		case asInt4(v[10]) == 0:
			f.Listed = append(f.Listed, e)
		default:
			f.Drained = append(f.Drained, e)
		}
		return nil
	}
	return s
}

// payload returns a copy, never nil.
func payload(b []byte) []byte {
	p := make([]byte, len(b))
	copy(p, b)
	return p
}

// someHeaders returns a copy, or nil if there are none.
func someHeaders(b []byte) []byte {
	if string(b) == "{}" {
		return nil
	}
	return bytes.Clone(b)
}
