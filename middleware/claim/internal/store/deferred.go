package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/millrace-go/millrace/pgtx"
)

// errClaimLost means that the server has crashed since the claim was committed, and has lost it.
var errClaimLost = errors.New("the claim was lost in a crash of the database: the event must come again")

// Flusher makes claims durable that were committed without waiting for the disk. One flush serves all waiting claims. During a
// flush, the next claims gather. It is safe for concurrent use.
type Flusher struct {
	store               *Postgres
	timeout             time.Duration
	commit, plan, check string

	mu      sync.Mutex
	waiting []*unflushed
	running bool
}

type unflushed struct {
	consumer     int16
	record, hash pgtype.UUID
	result       chan error
}

// NewFlusher returns a Flusher. Each flush may take as long as timeout.
func NewFlusher(s *Postgres, timeout time.Duration) *Flusher {
	query := func(name string) string { return Query(name, s.Schema) }
	return &Flusher{
		store: s, timeout: timeout,
		commit: query("deferred_commit"), plan: query("deferred_plan"), check: query("deferred_flush"),
	}
}

// Commit queues a statement in the claim's transaction, so that its commit does not wait for the disk.
func (f *Flusher) Commit(ctx context.Context) error { return pgtx.Queue(ctx, f.commit) }

// Durable returns nil when the claim is durable, and an error if it is lost or its state is unknown.
func (f *Flusher) Durable(ctx context.Context, key Key) error {
	consumer, err := f.store.Consumer(ctx, key.Consumer)
	if err != nil {
		return err
	}
	u := &unflushed{consumer: consumer, record: key.Record(), hash: key.Hash(), result: make(chan error, 1)}
	f.mu.Lock()
	f.waiting = append(f.waiting, u)
	if !f.running {
		f.running = true
		go f.run() // its callers wait for it
	}
	f.mu.Unlock()
	return <-u.result // each flush has a timeout
}

// run flushes until no claim waits.
func (f *Flusher) run() {
	for {
		f.mu.Lock()
		batch := f.waiting
		f.waiting = nil
		f.running = len(batch) > 0
		f.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		there, err := f.flush(batch)
		for i, u := range batch {
			switch {
			case err != nil:
				u.result <- fmt.Errorf("flush the claims: %w", err)
			case !there[i]:
				u.result <- errClaimLost
			default:
				u.result <- nil
			}
		}
	}
}

// flush returns which of the claims exist and are durable, in one round trip.
func (f *Flusher) flush(batch []*unflushed) (there []bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout) // not the context of one message
	defer cancel()
	records, hashes, consumers := make([]pgtype.UUID, len(batch)), make([]pgtype.UUID, len(batch)), make([]int16, len(batch))
	for i, u := range batch {
		records[i], hashes[i], consumers[i] = u.record, u.hash, u.consumer
	}
	b := &pgx.Batch{}
	b.Queue("begin isolation level read committed")
	b.Queue(f.plan)
	b.Queue(f.check, records, consumers, hashes).QueryRow(func(row pgx.Row) error { return row.Scan(&there, nil, nil) })
	committed := false
	b.Queue("commit").Exec(func(tag pgconn.CommandTag) error { committed = tag.String() == "COMMIT"; return nil })
	if err := f.store.Pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, err
	}
	if !committed || len(there) != len(batch) {
		return nil, errors.New("the answer to COMMIT was no COMMIT")
	}
	return there, nil
}
