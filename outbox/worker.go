package outbox

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// exchangeTimeout bounds a delete and read: a connection that says nothing for so long is given up.
	exchangeTimeout = time.Minute
	// flushTimeout bounds the last delete of a stopping worker.
	flushTimeout = 5 * time.Second
	// batchBytes bounds what a worker holds of payloads, one larger event apart.
	batchBytes = 16 << 20
)

// worker forwards the events of one shard, for as long as this relay holds its lease.
type worker struct {
	relay  *Relay
	shard  int16
	wake   chan struct{}
	cancel context.CancelFunc // at once
	stop   func()             // after the batch in flight
	stopC  <-chan struct{}
	done   chan struct{}

	published []row // acknowledged by the broker, not yet deleted
	failing   failing
	full      bool // so many fail that nothing is read
}

// row is an event as it stands in the table.
type row struct {
	seq     int64
	eventID string
	topic   string
	key     string
	headers []byte
	payload []byte
}

func (r *Relay) startWorker(hard context.Context, shard int16) *worker {
	ctx, cancel := context.WithCancel(hard)
	stopC := make(chan struct{})
	w := &worker{
		relay: r, shard: shard, wake: make(chan struct{}, 1), done: make(chan struct{}),
		cancel: cancel, stopC: stopC, stop: sync.OnceFunc(func() { close(stopC) }),
	}
	signal(w.wake)
	r.ending.Go(func() {
		defer close(w.done)
		defer cancel()
		w.run(ctx)
	})
	return w
}

func (w *worker) stopping() bool {
	select {
	case <-w.stopC:
		return true
	default:
		return false
	}
}

func (w *worker) run(ctx context.Context) {
	var retry time.Duration // after an error of the database
	for !w.stopping() && ctx.Err() == nil {
		if w.step(ctx, &retry) {
			continue
		}
		var due <-chan time.Time
		if d, ok := w.failing.next(time.Now()); ok {
			due = time.After(d)
		}
		if retry > 0 {
			due = time.After(retry)
		}
		select {
		case <-ctx.Done():
		case <-w.stopC:
		case <-due:
		case <-w.wake:
		}
	}
	w.flush(ctx)
}

// step deletes what the last step published, reads a batch and publishes it. It reports whether to go on at once.
func (w *worker) step(ctx context.Context, retry *time.Duration) bool {
	rows, err := w.exchange(ctx)
	if err != nil {
		if ctx.Err() == nil {
			*retry = backoff(*retry)
			w.relay.cfg.Logger.WarnContext(ctx, "read the outbox", "shard", w.shard, "retry_in", *retry, "error", err)
		}
		return false
	}
	*retry = 0
	if len(rows) == 0 {
		return false
	}
	w.publish(ctx, rows)
	return true // also after a short batch: the next step deletes what was published
}

// exchange deletes what was published and then reads: two transactions, because rows that stay locked while a stopped
// relay does not take its read's answer would hold up the shard's next holder. Nothing is open while publishing.
func (w *worker) exchange(ctx context.Context) ([]row, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	if err := w.delete(ctx); err != nil {
		return nil, err
	}
	ids, keys, full := w.failing.excluded(time.Now())
	if full && !w.full {
		w.relay.cfg.Logger.ErrorContext(ctx, "too many events of a shard fail: it waits for the first of them",
			"shard", w.shard, "failing", len(ids)+len(keys))
	}
	if w.full = full; full {
		return nil, nil
	}
	var rows []row
	err := w.relay.transact(ctx, func(b *pgx.Batch) {
		// A generic plan that was made while the table was empty stays a sequential scan.
		b.Queue(`select set_config('plan_cache_mode', 'force_custom_plan', true)`)
		b.Queue(w.relay.sql.read, w.shard, w.relay.cfg.BatchSize, ids, keys, batchBytes).Query(func(res pgx.Rows) (err error) {
			rows, err = pgx.CollectRows(res, func(res pgx.CollectableRow) (e row, err error) {
				return e, res.Scan(&e.seq, &e.eventID, &e.topic, &e.key, &e.headers, &e.payload)
			})
			return err
		})
	})
	return rows, err
}

// delete deletes what was published.
func (w *worker) delete(ctx context.Context) error {
	n := len(w.published)
	if n == 0 {
		return nil
	}
	seqs, ids, topics := make([]int64, n), make([]string, n), make([]string, n)
	for i, e := range w.published {
		seqs[i], ids[i], topics[i] = e.seq, e.eventID, e.topic
	}
	err := w.relay.transact(ctx, func(b *pgx.Batch) {
		// A lost delete is a duplicate, so it need not wait for the disk. Local to the transaction: a setting of the
		// session would leak into other clients of a pooler.
		b.Queue(`select set_config('synchronous_commit', 'off', true), set_config('plan_cache_mode', 'force_custom_plan', true)`)
		b.Queue(w.relay.sql.delete, w.shard, seqs, ids, topics)
	})
	if err == nil {
		w.published = w.published[:0]
	}
	return err
}

// transact sends statements as one transaction and in one round trip, read committed whatever the role's default is: a
// serializable relay would make the producers' transactions fail.
func (r *Relay) transact(ctx context.Context, queue func(*pgx.Batch)) error {
	b := &pgx.Batch{}
	b.Queue(`begin isolation level read committed`)
	queue(b)
	b.Queue(`commit`)
	return r.pool.SendBatch(ctx, b).Close()
}

// flush deletes what was published, also when the worker was cancelled: the broker has it.
func (w *worker) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := w.delete(ctx); err != nil {
		w.relay.cfg.Logger.WarnContext(ctx, "delete published events: they will be published again",
			"shard", w.shard, "events", len(w.published), "error", err)
	}
}
