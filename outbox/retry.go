package outbox

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/millrace-go/millrace/outbox/internal/store"
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
	id   int64
	hash int64 // of the key, or of the event's ID without one
	key  string
}

// retryFailed carries out the operators' commands and publishes what is due of a shard's side table. It reports false when
// there is no room for that now.
func (e *engine) retryFailed(s *shard) bool {
	// Half of what is left: newcomers of other keys go on meanwhile.
	room := min(headsAtOnce*maxBehind, (e.relay.cfg.MaxUnsaved-s.unsaved+1)/2)
	careful := s.careful > 0
	if careful {
		room = min(room, 1)
	}
	if room <= 0 || careful && e.cautious() {
		e.blocked = true
		return false
	}
	w := &retrying{
		relay: e.relay, shard: s, careful: careful, suspect: s.suspect, deaths: s.attempts,
		success: maps.Clone(e.success), tried: s.tried, heads: maxHeads, atOnce: min(headsAtOnce, room), succeeded: map[string]time.Time{},
	}
	w.behind = max(1, room/w.atOnce)
	if careful {
		w.heads = 1
		s.careful--
		e.carefulRetry = true
	}
	known := make([]string, 0, len(s.parked))
	for k := range s.parked {
		known = append(known, k)
	}
	s.moving = true
	s.unsaved += room
	e.do(func() func(time.Time) {
		left, more, err := w.run(s.ctx, known)
		return func(now time.Time) {
			s.moving = false
			s.unsaved -= room
			if careful {
				e.carefulRetry = false
			}
			for t, at := range w.succeeded {
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
			s.moveWait, s.retry = 0, s.retry || more
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
	return true
}

// retrying is one round over a shard's side table.
type retrying struct {
	relay   *Relay
	shard   *shard               // its number, context and lease: the rest is the loop's
	success map[string]time.Time // when the broker took an event, by topic, before
	heads   int                  // how many to work on
	atOnce  int                  // how many of them at a time
	behind  int                  // how many events of each are published at once

	careful bool   // each is noted before it is sent
	suspect string // a relay died while it sent this event alone
	deaths  int    // so often

	mu        sync.Mutex
	tried     map[int64]time.Time // when an event was tried the last time, by its ID in the table
	succeeded map[string]time.Time
}

// run returns the keys that still have events, and whether more is due.
func (w *retrying) run(ctx context.Context, known []string) (left map[string]struct{}, more bool, err error) {
	heads, err := w.due(ctx)
	if err != nil {
		return nil, false, err
	}
	var (
		group  sync.WaitGroup
		slots  = make(chan struct{}, w.atOnce)
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
		if h.key != "" {
			keys = append(keys, h.key)
		}
	}
	hashes := make([]int64, len(keys))
	for i, k := range keys {
		hashes[i] = store.Hash(k, "")
	}
	left = map[string]struct{}{}
	err = w.ask(ctx, statement{sql: w.relay.sql.failedLeft, args: []argument{smallint(w.shard.id), int8s(hashes), texts(keys)}, row: func(v [][]byte) error {
		left[string(v[0])] = struct{}{}
		return nil
	}})
	return left, more || len(heads) == w.heads, err
}

// ask runs statements in a transaction.
func (w *retrying) ask(ctx context.Context, statements ...statement) error {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	return roundTrip(ctx, w.relay.pool, append(append([]statement{begin}, statements...), commit)...)
}

// due carries out the commands and returns what is due.
func (w *retrying) due(ctx context.Context) (heads []head, err error) {
	shard := smallint(w.shard.id)
	err = w.ask(ctx,
		statement{sql: w.relay.sql.failedCommands, args: []argument{shard}},
		statement{sql: w.relay.sql.failedPromote, args: []argument{shard, {pgtype.Int8OID, nil}, {pgtype.TextOID, nil}}},
		statement{sql: w.relay.sql.failedHeads, args: []argument{shard, integer(w.heads)}, row: func(v [][]byte) error {
			heads = append(heads, head{asInt8(v[0]), asInt8(v[1]), string(v[2])})
			return nil
		}})
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
		for n < len(rows) && rows[n].topic == rows[0].topic && rows[n].state != stateDead {
			n++
		}
		if rows[0].state == stateDead {
			failed = true
			break
		}
		if w.careful && rows[0].eventID == w.suspect && w.deaths >= maxDeaths {
			return true, errors.Join(w.kills(ctx, rows[0]), w.done(ctx, h, done))
		}
		for i, err := range w.send(rows[:n]) {
			if err != nil {
				failed = true
				if ctx.Err() == nil {
					err = w.again(ctx, rows[i], err)
				}
				if err != nil {
					return true, errors.Join(err, w.done(ctx, h, done))
				}
				break
			}
			w.succeed(rows[i].topic)
			done = append(done, rows[i].id)
		}
		rows = rows[n:]
	}
	return failed, w.done(ctx, h, done)
}

// send publishes rows of one topic.
func (w *retrying) send(rows []failedRow) []error {
	batch := make([]*row, len(rows))
	for i := range batch {
		batch[i] = &rows[i].row
	}
	return w.relay.sendNoted(w.shard, rows[0].topic, batch, w.careful)
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
	state := stateRetrying
	if isOwnFault(reason, last, success) {
		e.attempts++
		state = stateAfter(reason, e.attempts, w.relay.cfg.MaxAttempts)
	}
	return w.note(ctx, e, state, reason.Error())
}

// kills makes an event dead that ended its relay every time.
func (w *retrying) kills(ctx context.Context, e failedRow) error {
	e.attempts = max(e.attempts, w.deaths)
	return w.note(ctx, e, stateDead, reasonKills)
}

// note keeps what became of an event, although the context may have ended.
func (w *retrying) note(ctx context.Context, e failedRow, state, reason string) error {
	return w.ask(context.WithoutCancel(ctx), statement{sql: w.relay.sql.failedAgain, args: []argument{
		bigint(e.id), text(state), integer(e.attempts), text(printable(reason)), integer(int(failedBackoff(max(e.attempts, 1)).Milliseconds())),
	}})
}

func (w *retrying) rows(ctx context.Context, h head) (rows []failedRow, err error) {
	err = w.ask(ctx, statement{
		sql: w.relay.sql.failedRows, args: []argument{smallint(w.shard.id), bigint(h.hash), text(h.key), bigint(h.id), integer(min(w.behind, maxBehind)), bigint(int64(batchBytes / w.atOnce))},
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
	})
	return rows, err
}

// done deletes what was published and makes the next of its key due, although the context may have ended: the broker has it.
func (w *retrying) done(ctx context.Context, h head, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	w.mu.Lock()
	for _, id := range ids {
		delete(w.tried, id)
	}
	w.mu.Unlock()
	return w.ask(context.WithoutCancel(ctx),
		statement{sql: w.relay.sql.failedDone, args: []argument{int8s(ids)}},
		statement{sql: w.relay.sql.failedPromote, args: []argument{smallint(w.shard.id), bigint(h.hash), text(h.key)}})
}
