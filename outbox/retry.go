package outbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/millrace-go/millrace/transport"
)

const (
	// maxHeads is how many keys are worked on before a shard looks at its newcomers again.
	maxHeads = 200
	// headsAtOnce is how many of them at a time.
	headsAtOnce = 16
	// maxBehind is how many events of a key are published at once.
	maxBehind = 200
)

// failedRow is an event of the side table.
type failedRow struct {
	row
	id       int64
	state    string
	attempts int
}

// head is an event of the side table that is due, the first of its key.
type head struct {
	id  int64
	key string
}

// retryFailed carries out the operators' commands and publishes what is due of a shard's side table.
func (e *engine) retryFailed(s *shard) {
	s.moving = true
	known := make([]string, 0, len(s.parked))
	for k := range s.parked {
		known = append(known, k)
	}
	success := make(map[string]time.Time, len(e.success))
	for t, at := range e.success {
		success[t] = at
	}
	work := &retrying{relay: e.relay, shard: s.id, success: success, tried: s.tried}
	e.do(func() func(time.Time) {
		left, more, err := work.run(s.ctx, known)
		return func(now time.Time) {
			s.moving = false
			for t, at := range work.succeeded {
				if at.After(e.success[t]) {
					e.success[t] = at
				}
			}
			if err != nil {
				s.moveWait = backoff(s.moveWait)
				s.moveAfter, s.retry = now.Add(s.moveWait), true
				if s.ctx.Err() == nil {
					e.relay.cfg.Logger.Warn("work on failed events", "shard", s.id, "retry_in", s.moveWait, "error", err)
				}
				return
			}
			s.moveWait, s.retry = 0, more
			for _, k := range known {
				if _, still := left[k]; !still {
					s.free(k)
				}
			}
			for k := range left {
				s.parked[k] = struct{}{}
			}
		}
	})
}

// retrying is one round over a shard's side table.
type retrying struct {
	relay   *Relay
	shard   int16
	success map[string]time.Time // when the broker took an event, by topic, before

	mu        sync.Mutex
	tried     map[int64]time.Time // when an event was tried the last time, by its ID in the table
	succeeded map[string]time.Time
}

// run returns the keys that still have events, and whether more is due.
func (w *retrying) run(ctx context.Context, known []string) (left map[string]struct{}, more bool, err error) {
	w.succeeded = map[string]time.Time{}
	heads, err := w.heads(ctx)
	if err != nil {
		return nil, false, err
	}
	var (
		group  sync.WaitGroup
		slots  = make(chan struct{}, headsAtOnce)
		errs   = make([]error, len(heads))
		failed = make([]bool, len(heads))
	)
	for i, h := range heads {
		slots <- struct{}{}
		group.Go(func() {
			failed[i], errs[i] = w.drain(ctx, h)
			<-slots
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, false, err
	}
	keys := known
	for i, h := range heads {
		more = more || !failed[i]
		keys = append(keys, h.key)
	}
	left = map[string]struct{}{}
	err = roundTrip(ctx, w.relay.pool, begin, statement{sql: w.relay.sql.failedLeft, args: []argument{smallint(w.shard), texts(keys)}, row: func(v [][]byte) error {
		if len(v[0]) > 0 {
			left[string(v[0])] = struct{}{}
		}
		return nil
	}}, commit)
	return left, more, err
}

// heads carries out the commands and returns what is due.
func (w *retrying) heads(ctx context.Context) (heads []head, err error) {
	shard := []argument{smallint(w.shard)}
	err = roundTrip(ctx, w.relay.pool, begin,
		statement{sql: w.relay.sql.failedCommands, args: shard},
		statement{sql: w.relay.sql.failedPromote, args: []argument{smallint(w.shard), {pgtype.TextArrayOID, nil}}},
		statement{sql: w.relay.sql.failedHeads, args: []argument{smallint(w.shard), integer(maxHeads)}, row: func(v [][]byte) error {
			heads = append(heads, head{asInt8(v[0]), string(v[1])})
			return nil
		}}, commit)
	return heads, err
}

// drain publishes a due event and those behind it, and reports whether one failed.
func (w *retrying) drain(ctx context.Context, h head) (failed bool, err error) {
	rows, err := w.rows(ctx, h)
	if err != nil {
		return false, err
	}
	var done []int64
	for len(rows) > 0 && !failed {
		n := 1
		for n < len(rows) && rows[n].topic == rows[0].topic && rows[n].state != stateParked {
			n++
		}
		if rows[0].state == stateParked {
			failed = true
			break
		}
		batch := make([]*row, n)
		for i := range batch {
			batch[i] = &rows[i].row
		}
		results := w.relay.send(ctx, rows[0].topic, batch)
		for i, err := range results {
			if err != nil {
				failed = true
				if ctx.Err() == nil {
					err = w.again(ctx, rows[i], err)
				}
				if err != nil {
					return true, errors.Join(err, w.done(ctx, h.key, done))
				}
				break
			}
			w.succeed(rows[i].topic)
			done = append(done, rows[i].id)
		}
		rows = rows[n:]
	}
	return failed, w.done(ctx, h.key, done)
}

func (w *retrying) succeed(topic string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.succeeded[topic] = time.Now()
}

// again notes that an event failed again. Whether that counts is decided as for an event of the outbox.
func (w *retrying) again(ctx context.Context, e failedRow, reason error) error {
	w.mu.Lock()
	last := w.tried[e.id]
	w.tried[e.id] = time.Now()
	success := w.success[e.topic]
	if w.succeeded[e.topic].After(success) {
		success = w.succeeded[e.topic]
	}
	w.mu.Unlock()
	state := stateRetry
	rejected := errors.Is(reason, transport.ErrRejected)
	counts := rejected || !isOutage(reason) && !last.IsZero() && success.After(last)
	if counts {
		e.attempts++
	}
	if rejected || e.attempts >= w.relay.cfg.MaxAttempts {
		state = stateParked
	}
	return roundTrip(context.WithoutCancel(ctx), w.relay.pool, begin, statement{sql: w.relay.sql.failedAgain, args: []argument{
		smallint(w.shard), bigint(e.id), text(state), integer(e.attempts), text(printable(reason.Error())),
		integer(int(failedBackoff(max(e.attempts, 1)).Milliseconds())),
	}}, commit)
}

func (w *retrying) rows(ctx context.Context, h head) (rows []failedRow, err error) {
	err = roundTrip(ctx, w.relay.pool, begin, statement{
		sql: w.relay.sql.failedRows, args: []argument{smallint(w.shard), text(h.key), bigint(h.id), integer(maxBehind)},
		row: func(v [][]byte) error {
			rows = append(rows, failedRow{
				id: asInt8(v[0]), state: string(v[1]), attempts: asInt4(v[2]),
				row: row{
					seq: asInt8(v[3]), eventID: string(v[4]), topic: string(v[5]), key: string(v[6]),
					headers: someHeaders(v[7]), payload: append([]byte{}, v[8]...), written: asTime(v[9]),
				},
			})
			return nil
		},
	}, commit)
	return rows, err
}

// done deletes what was published and makes the next of its key due, although the context may have ended: the broker has it.
func (w *retrying) done(ctx context.Context, key string, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	w.mu.Lock()
	for _, id := range ids {
		delete(w.tried, id)
	}
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	return roundTrip(ctx, w.relay.pool, begin,
		statement{sql: w.relay.sql.failedDone, args: []argument{smallint(w.shard), int8s(ids)}},
		statement{sql: w.relay.sql.failedPromote, args: []argument{smallint(w.shard), texts([]string{key})}}, commit)
}
