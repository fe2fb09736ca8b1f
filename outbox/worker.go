package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/transport"
)

// flushTimeout bounds the last delete of a stopping worker.
const flushTimeout = 5 * time.Second

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

// exchange is one round trip and one implicit transaction: delete, then read. Nothing is open while publishing.
func (w *worker) exchange(ctx context.Context) ([]row, error) {
	var rows []row
	b := &pgx.Batch{}
	w.queueDelete(b)
	ids, keys, full := w.failing.excluded(time.Now())
	if !full {
		b.Queue(w.relay.sql.read, w.shard, w.relay.cfg.BatchSize, ids, keys).Query(func(res pgx.Rows) (err error) {
			rows, err = pgx.CollectRows(res, func(res pgx.CollectableRow) (e row, err error) {
				return e, res.Scan(&e.seq, &e.eventID, &e.topic, &e.key, &e.headers, &e.payload)
			})
			return err
		})
	}
	if err := w.relay.pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, err
	}
	w.published = w.published[:0]
	return rows, nil
}

func (w *worker) queueDelete(b *pgx.Batch) {
	// A lost delete is a duplicate, so it need not wait for the disk. Local to the transaction: a setting of the session
	// would leak into other clients of a pooler. Custom plans: a generic one that was made while the table was empty
	// stays a sequential scan.
	b.Queue(`select set_config('synchronous_commit', 'off', true), set_config('plan_cache_mode', 'force_custom_plan', true)`)
	if len(w.published) == 0 {
		return
	}
	seqs, ids := make([]int64, len(w.published)), make([]string, len(w.published))
	for i, e := range w.published {
		seqs[i], ids[i] = e.seq, e.eventID
	}
	b.Queue(w.relay.sql.delete, w.shard, seqs, ids)
}

// flush deletes what was published, also when the worker was cancelled: the broker has it.
func (w *worker) flush(ctx context.Context) {
	if len(w.published) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	b := &pgx.Batch{}
	w.queueDelete(b)
	if err := w.relay.pool.SendBatch(ctx, b).Close(); err != nil {
		w.relay.cfg.Logger.WarnContext(ctx, "delete published events: they will be published again",
			"shard", w.shard, "events", len(w.published), "error", err)
	}
}

// publish sends the rows, wave by wave, and notes what was acknowledged and what failed.
func (w *worker) publish(ctx context.Context, rows []row) {
	ctx, cancel := context.WithTimeout(ctx, w.relay.cfg.PublishTimeout)
	defer cancel()
	stuck := map[string]bool{} // keys of which an event failed: none of their later ones is sent
	var failed []slog.Attr     // of the first that failed
	failures := 0
	for _, wave := range plan(rows) {
		results := make([][]error, len(wave))
		var sends sync.WaitGroup
		for i, group := range wave {
			wave[i].rows = group.without(stuck)
			results[i] = make([]error, len(wave[i].rows))
			sends.Go(func() { w.send(ctx, wave[i], results[i]) })
		}
		sends.Wait()
		for i, group := range wave {
			for j, e := range group.rows {
				err := results[i][j]
				if err == nil {
					w.failing.clear(e)
					w.published = append(w.published, e)
					continue
				}
				if e.key != "" {
					stuck[e.key] = true
				}
				if errors.Is(err, transport.ErrNotSent) {
					continue
				}
				wait, attempt := w.failing.note(e, time.Now())
				if failures++; failures == 1 {
					failed = []slog.Attr{
						slog.String("event_id", e.eventID), slog.String("topic", e.topic),
						slog.Int("attempt", attempt), slog.Duration("retry_in", wait), slog.Any("error", err),
					}
				}
			}
		}
	}
	if failures > 0 { // one line for a batch: in an outage every event fails
		attrs := append([]slog.Attr{slog.Int("shard", int(w.shard)), slog.Int("failed", failures)}, failed...)
		w.relay.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "publish events", attrs...)
	}
}

// send publishes one topic's rows and puts the result of each in its place.
func (w *worker) send(ctx context.Context, g group, results []error) {
	msgs, at := make([]*message.Message, 0, len(g.rows)), make([]int, 0, len(g.rows))
	bad := map[string]bool{}
	for i, e := range g.rows {
		msg, err := e.message(ctx)
		switch {
		case e.key != "" && bad[e.key]:
			results[i] = transport.ErrNotSent
		case err != nil:
			results[i], bad[e.key] = err, true
		default:
			msgs, at = append(msgs, msg), append(at, i)
		}
	}
	if len(msgs) == 0 {
		return
	}
	for i, err := range w.relay.publishBatch(ctx, g.topic, msgs) {
		results[at[i]] = err
	}
}

// publishBatch sends the messages at once where the publisher can, else one by one.
func (r *Relay) publishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	if b, ok := r.publisher.(transport.BatchPublisher); ok {
		if results := b.PublishBatch(ctx, topic, msgs); len(results) == len(msgs) {
			return results
		}
		return repeat(fmt.Errorf("publisher %T did not return one result per message", b), len(msgs))
	}
	results, failed := make([]error, len(msgs)), map[string]bool{}
	for i, m := range msgs {
		key := transport.Key(m)
		switch {
		case ctx.Err() != nil:
			results[i] = ctx.Err()
		case key != "" && failed[key]:
			results[i] = transport.ErrNotSent
		default:
			results[i] = r.publisher.Publish(topic, m)
			failed[key] = results[i] != nil
		}
	}
	return results
}

func repeat(err error, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func (e row) message(ctx context.Context) (*message.Message, error) {
	m := message.NewMessageWithContext(ctx, e.eventID, e.payload)
	if err := json.Unmarshal(e.headers, &m.Metadata); err != nil {
		return nil, fmt.Errorf("headers of event %s: %w", e.eventID, err)
	}
	transport.SetKey(m, e.key)
	return m, nil
}
