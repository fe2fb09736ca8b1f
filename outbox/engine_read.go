package outbox

import (
	"slices"
	"time"
)

// read starts a read of the shards that have room and may have new rows. It returns when it is worth looking again; the
// zero time: at the next event.
func (e *engine) read(now time.Time) (due time.Time) {
	batch := e.relay.cfg.BatchSize
	var requests []request
	var asked []*shard
	rows, bytes, writers := 0, 0, false
	full := e.weight(now) >= 4*batchBytes
	ids, first := e.held(), e.next
	for i := range ids {
		s := e.shards[ids[(first+i)%len(ids)]]
		s.shed(now)
		rescan := !now.Before(s.rescanAt)
		fetch := s.missing(batch, now)
		if !s.loaded || s.stopping || s.ctx.Err() != nil || !(s.woken || rescan || len(fetch) > 0) {
			continue
		}
		if len(fetch) == 0 && (full || !s.hungry(batch, now)) {
			continue
		}
		q := s.request(batch, rescan, fetch, now)
		if len(requests) > 0 && (rows+q.limit > max(2*batch, maxRead) || bytes+q.limit*s.size() > batchBytes) {
			break // the rest in the next one
		}
		rows += q.limit
		bytes += q.limit * s.size()
		writers = writers || s.memory.curious()
		if e.readAfter.After(now) {
			return e.readAfter
		}
		if rescan {
			s.rescanAt = now.Add(rescanEvery)
		}
		s.woken = false
		requests, asked = append(requests, q), append(asked, s)
		e.next = (first + i + 1) % len(ids)
	}
	if len(requests) == 0 {
		return time.Time{}
	}
	e.reading = true
	e.do(func() func(time.Time) {
		a, err := e.reader.read(e.hard, requests, writers)
		return func(now time.Time) { e.learn(asked, a, err, now) }
	})
	return time.Time{}
}

func (e *engine) weight(now time.Time) (bytes int) {
	for _, s := range e.shards {
		bytes += s.weight(now)
	}
	return bytes
}

// weight is the bytes of payloads held, without those that a stuck lane is sending: others must not wait for it.
func (s *shard) weight(now time.Time) int {
	bytes := s.bytes
	for _, l := range s.lanes {
		if l.stuck(now) {
			for _, e := range l.sending {
				bytes -= e.bytes
			}
		}
	}
	return bytes
}

// shed drops the payloads that wait behind a stuck lane when they take up room. They are read again when their turn comes.
func (s *shard) shed(now time.Time) {
	if s.bytes < batchBytes/4 {
		return
	}
	for _, l := range s.lanes {
		if l.stuck(now) {
			for _, e := range l.ready {
				if !e.gone {
					s.unload(e)
				}
			}
		}
	}
}

// size is what a row of the shard is taken for.
func (s *shard) size() int {
	if s.average == 0 {
		return firstSize
	}
	return s.average
}

// hungry reports whether the shard could do with more events.
func (s *shard) hungry(batch int, now time.Time) bool {
	if len(s.held) >= maxHeld || s.weight(now) >= batchBytes {
		return false
	}
	ready := 0
	for _, l := range s.lanes {
		if !l.stuck(now) { // others must not wait for one that is
			ready += len(l.ready)
		}
	}
	return ready < batch
}

// missing lists numbers whose payloads are needed next.
func (s *shard) missing(batch int, now time.Time) (list []int64) {
	if s.bare == 0 {
		return nil
	}
	bytes := s.weight(now)
	for _, l := range s.lanes {
		if l.stuck(now) {
			continue
		}
		for i, e := range l.ready[:min(len(l.ready), batch)] {
			if e.payload == nil && !e.gone {
				if bytes >= batchBytes && (i > 0 || len(l.sending) > 0) {
					break // when its turn comes
				}
				if bytes += s.size(); len(list) > 0 && (bytes > batchBytes || len(list) == batch) {
					return list
				}
				list = append(list, e.seq)
			}
		}
	}
	return list
}

// request says what the next read of the shard is to find.
func (s *shard) request(batch int, rescan bool, fetch []int64, now time.Time) request {
	q := request{shard: s.id, from: s.memory.from(), limit: batch, fetch: fetch}
	if s.average == 0 {
		q.limit = min(batch, firstRead) // until the rows' size is known
	} else {
		q.limit = max(min(batch, batchBytes/s.average), 1)
	}
	switch {
	case !s.memory.known:
		q.scan = !s.memory.begun
		q.limit += len(s.held) // it returns those again
	case rescan:
		q.rescan, q.from = true, 0
		q.limit += len(s.held)
	default:
		q.list = s.memory.holes()
	}
	q.list = append(q.list, fetch...)
	for _, l := range s.lanes {
		if l.stuck(now) && len(l.ready) >= batch {
			q.hide = append(q.hide, l.topic)
		}
	}
	return q
}

// learn takes what a read has found.
func (e *engine) learn(asked []*shard, a answer, err error, now time.Time) {
	e.reading = false
	if err != nil {
		// It may be another server that answers next: nothing that is remembered holds.
		e.forget()
		for _, s := range asked {
			s.woken = true
		}
		e.readWait = backoff(e.readWait)
		e.readAfter = now.Add(e.readWait)
		if e.hard.Err() == nil {
			e.relay.cfg.Logger.Warn("read the outbox", "retry_in", e.readWait, "error", err)
		}
	} else {
		e.readWait = 0
		if a.moved {
			e.forget()
		}
		rows := 0
		for i, s := range asked {
			if s.ctx.Err() == nil {
				rows += e.digest(s, a.shards[i], a.writers, a.now, now)
			}
		}
		// Under load, reads that follow at once find little and cost as much.
		e.readAfter = now.Add(min(time.Duration(rows)*300*time.Microsecond, maxPace))
		if rows >= e.relay.cfg.BatchSize/2 {
			e.readAfter = now
		}
	}
	for _, g := range e.ghosts {
		g.shard.drop(g.event)
	}
	e.ghosts = nil
	holes := 0
	for _, s := range e.shards {
		holes += len(s.memory.older) + len(s.memory.newer)
	}
	e.relay.observer.holes.Store(int64(holes))
}

func (e *engine) forget() {
	for _, s := range e.shards {
		s.memory.forget(0)
	}
	e.reader.durable, e.reader.pendingAt = 0, 0
}

// digest takes what was found in one shard, and returns how many rows of it are new.
func (e *engine) digest(s *shard, f found, w writers, server, now time.Time) int {
	for i := range f.rows {
		f.rows[i].written = now.Add(f.rows[i].written.Sub(server)) // by our clock
	}
	fresh := s.take(f.rows)
	s.lose(f)
	numbers := make([]int64, len(f.rows))
	for i := range f.rows {
		numbers[i] = f.rows[i].seq
	}
	view := seen{numbers: numbers, fresh: fresh, more: f.more, last: f.last, writers: w}
	if f.rescan && f.more {
		view.writers = nil // it has not looked at every hole
	}
	if s.memory.learn(view) {
		e.relay.observer.surprised()
		e.relay.cfg.Logger.Warn("events turned up below those that were read: reading the shard again from its start", "shard", s.id)
	}
	if f.more || s.bare > 0 && len(f.fetch) > 0 {
		s.woken = true
	}
	if len(f.rows) == 0 && s.strikes > 0 && len(s.held) == 0 && !s.retry && !s.moving {
		e.progress(s) // there is nothing that could kill
	}
	return len(fresh)
}

// lose lets go of events whose payloads were asked for and whose rows are no longer there: somebody else deleted them.
func (s *shard) lose(f found) {
	if len(f.fetch) == 0 {
		return
	}
	there := make(map[int64]bool, len(f.rows))
	for i := range f.rows {
		there[f.rows[i].seq] = true
	}
	for _, l := range s.lanes {
		for _, e := range l.ready {
			if e.payload == nil && !e.gone && !there[e.seq] && slices.Contains(f.fetch, e.seq) {
				e.gone = true
				s.bare--
				s.drop(e)
			}
		}
	}
}
