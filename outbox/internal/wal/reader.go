package wal

import (
	"context"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/outbox/internal/wake"
)

const (
	// lookEvery is how often the table is read while there are gaps: only a read that lists the open writers can drop gaps that a rollback
	// left. The buffer is searched for gaps at every read. lookEvery is also the longest time without a question to the server while the
	// buffer is empty.
	lookEvery = time.Second
	// againAfter is how soon the table is read again so that the WAL can answer.
	againAfter = 50 * time.Millisecond
	// mostPatience is the longest time between two looks for a transaction that the WAL has shown and no snapshot yet.
	mostPatience = 250 * time.Millisecond
)

// Reader answers a relay's reads from the WAL where that is complete, and from the table otherwise. It is not safe for concurrent use.
type Reader struct {
	table    *store.Reader
	buffer   *Buffer
	wakes    *wake.Collector
	looked   time.Time // when the table was last read with a list of the open writers
	asked    time.Time // when the server was last asked
	patience time.Duration
}

// NewReader returns a reader of the buffer and the table. It wakes the relay for shards that should be read again.
func NewReader(table *store.Reader, buffer *Buffer, wakes *wake.Collector) *Reader {
	return &Reader{table: table, buffer: buffer, wakes: wakes}
}

// Read answers the requests.
func (r *Reader) Read(ctx context.Context, requests []step.Request, askWriters bool) (step.Answer, error) {
	now := time.Now()
	if yes, nothing := r.buffer.Answers(requests, now); yes && (!askWriters || now.Sub(r.looked) < lookEvery) {
		if nothing && now.Sub(r.asked) < lookEvery {
			return step.Answer{Shards: make([]step.Found, len(requests))}, nil
		}
		if answer, ok, err := r.fromBuffer(ctx, requests, now); ok || err != nil {
			return answer, err
		}
	}
	askWriters = r.buffer.Prepare(requests) || askWriters
	answer, err := r.table.Read(ctx, requests, askWriters)
	if err != nil {
		return answer, err
	}
	r.asked = now
	if askWriters {
		r.looked = now
	}
	r.again(againAfter, r.buffer.Learn(requests, answer, r.table.Snapshot, r.table.ServerStarted, now))
	return answer, nil
}

func (r *Reader) fromBuffer(ctx context.Context, requests []step.Request, now time.Time) (answer step.Answer, ok bool, err error) {
	if answer, err = r.table.Visible(ctx); err != nil {
		return answer, false, err
	}
	r.asked = now
	if answer.Moved { // the core forgets everything
		answer.Shards = make([]step.Found, len(requests))
		return answer, true, nil
	}
	found, more, waiting, ok := r.buffer.Take(requests, r.table.Snapshot, r.table.ServerStarted, now)
	if !ok {
		return answer, false, nil
	}
	answer.Shards = found
	r.again(0, more)
	if len(waiting) == 0 {
		r.patience = 0
	} else {
		r.patience = min(max(2*r.patience, time.Millisecond), mostPatience)
		r.again(r.patience, waiting)
	}
	return answer, true, nil
}

// again wakes the relay for shards after d. It passes their numbers in place of hashes, as Stream.wake does.
func (r *Reader) again(d time.Duration, shards []int64) {
	switch {
	case len(shards) == 0:
	case d == 0:
		r.wakes.Add(shards)
	default:
		time.AfterFunc(d, func() { r.wakes.Add(shards) })
	}
}
