package outbox

import (
	"context"
	"slices"
	"time"
)

// event is a row that the relay holds.
type event struct {
	row
	arrival int64 // its place among the shard's events
	keyed   *keyed
	bytes   int // of its payload in memory

	leaving  bool      // published or on its way to the side table: its row is still there
	gone     bool      // its row is deleted, or nobody knows where
	failedAt time.Time // the last time; zero: never
	attempts int       // failures that were its own
}

// lane is what goes to one topic. One batch of it is in flight at a time.
type lane struct {
	topic   string
	ready   []*event // in order
	sending []*event
	since   time.Time     // when it was sent
	wait    time.Duration // the backoff, after nothing could be sent
	until   time.Time
}

// slow is how long a batch is in flight before its lane no longer holds up reading for the others.
const slow = 250 * time.Millisecond

// stuck reports whether the lane is not getting on.
func (l *lane) stuck(now time.Time) bool {
	return l.until.After(now) || len(l.sending) > 0 && now.Sub(l.since) > slow
}

// keyed is what is held of one key, or an event without key that has failed.
type keyed struct {
	name    string
	lane    *lane    // where its pending events are
	pending int      // ready or being sent
	waiting []*event // in order: for the pending ones of another lane, or for the end of the backoff

	failing bool
	wait    time.Duration
	until   time.Time
}

// hold puts an event where its arrival says.
func (k *keyed) hold(e *event) {
	i, _ := slices.BinarySearchFunc(k.waiting, e.arrival, func(w *event, n int64) int { return int(w.arrival - n) })
	k.waiting = slices.Insert(k.waiting, i, e)
}

// identity is what tells rows apart, also when a sequence was set back.
type identity struct {
	seq     int64
	eventID string
}

// shard is what the relay knows of a shard whose lease it holds. It does no I/O. It is not safe for concurrent use: the
// engine's loop owns it.
type shard struct {
	id     int16
	ctx    context.Context //nolint:containedctx // of everything that is done for the lease: it ends with it
	cancel context.CancelFunc

	memory    memory
	held      map[identity]*event
	lanes     map[string]*lane
	keys      map[string]*keyed // that have events held
	failing   map[*keyed]struct{}
	parked    map[string]struct{} // keys that have events in the side table
	park      []parking           // to be moved there
	moving    bool                // a move, or a retry of what is there, is under way
	retry     bool                // something there is due
	tried     map[int64]time.Time // when an event there was tried the last time, by its ID
	moveAfter time.Time           // after an error
	moveWait  time.Duration

	arrivals int64
	bytes    int // of payloads in memory
	bare     int // events held without their payload
	unsaved  int // published, or being published, and not deleted

	loaded   bool // parked is complete
	stopping bool // takes no more
	woken    bool // there may be new rows
	rescanAt time.Time
	average  int // bytes of a row; 0: not known

	strikes  int    // unclean takeovers
	careful  int    // so many events are still sent one by one
	suspect  string // a relay died while it sent this event alone
	attempts int    // so often
}

func newShard(ctx context.Context, id int16) *shard {
	s := &shard{
		id: id, held: map[identity]*event{}, lanes: map[string]*lane{}, keys: map[string]*keyed{},
		failing: map[*keyed]struct{}{}, parked: map[string]struct{}{}, tried: map[int64]time.Time{}, woken: true,
	}
	s.ctx, s.cancel = context.WithCancel(ctx)
	return s
}

func (s *shard) lane(topic string) *lane {
	l := s.lanes[topic]
	if l == nil {
		l = &lane{topic: topic}
		s.lanes[topic] = l
	}
	return l
}

// take holds the rows that it does not hold yet and returns their numbers. What it holds without a payload gets it.
func (s *shard) take(rows []row) (fresh []int64) {
	for i := range rows {
		r := &rows[i]
		if e := s.held[r.identity()]; e != nil {
			if e.payload == nil && r.payload != nil && !e.gone && !e.leaving {
				s.load(e, r)
			}
			continue
		}
		fresh = append(fresh, r.seq)
		s.arrivals++
		e := &event{row: *r, arrival: s.arrivals}
		s.held[e.identity()] = e
		if e.payload == nil {
			s.bare++
		}
		e.bytes = len(e.payload)
		s.bytes += e.bytes
		if r.size > 0 {
			s.average = (s.average*7 + r.size + 200) / 8
		}
		s.arrive(e)
	}
	return fresh
}

func (e *row) identity() identity { return identity{e.seq, e.eventID} }

func (s *shard) load(e *event, r *row) {
	e.headers, e.payload, e.bytes = r.headers, r.payload, len(r.payload)
	s.bare--
	s.bytes += e.bytes
}

// unload drops the payload of an event that waits; it is read again when its turn comes.
func (s *shard) unload(e *event) {
	if e.payload != nil {
		s.bytes -= e.bytes
		s.bare++
		e.headers, e.payload, e.bytes = nil, nil, 0
	}
}

// drop lets go of an event whose row is gone.
func (s *shard) drop(e *event) {
	if s.held[e.identity()] == e {
		delete(s.held, e.identity())
	}
}

// release gives an event's payload back.
func (s *shard) release(e *event) {
	if e.payload == nil {
		s.bare--
	}
	s.bytes -= e.bytes
	e.headers, e.payload, e.bytes = nil, nil, 0
}

func (s *shard) arrive(e *event) {
	l := s.lane(e.topic)
	if e.key == "" {
		l.ready = append(l.ready, e)
		return
	}
	if _, ok := s.parked[e.key]; ok {
		s.queue(e)
		return
	}
	k := s.keys[e.key]
	if k == nil {
		k = &keyed{name: e.key, lane: l}
		s.keys[e.key] = k
	}
	e.keyed = k
	if k.failing || len(k.waiting) > 0 || k.pending > 0 && k.lane != l {
		k.waiting = append(k.waiting, e)
		return
	}
	k.lane = l
	k.pending++
	l.ready = append(l.ready, e)
}

// next takes a lane's next batch, of at most limit events whose payloads are there.
func (s *shard) next(l *lane, limit int, now time.Time) []*event {
	if len(l.sending) > 0 || l.until.After(now) {
		return nil
	}
	bytes, n := 0, 0
	for n < len(l.ready) && n < limit {
		e := l.ready[n]
		if e.payload == nil && !e.gone {
			break
		}
		if bytes += e.bytes; n > 0 && bytes > batchBytes {
			break
		}
		n++
	}
	batch := l.ready[:n:n]
	l.ready = l.ready[n:]
	if slices.ContainsFunc(batch, func(e *event) bool { return e.gone }) {
		batch = slices.DeleteFunc(slices.Clone(batch), func(e *event) bool {
			if e.gone {
				s.settleKey(e)
			}
			return e.gone
		})
	}
	if len(batch) > 0 {
		l.sending, l.since = batch, now
		s.unsaved += len(batch)
	}
	return batch
}

// settleKey notes that an event of the key is no longer pending, and lets those go that waited for it.
func (s *shard) settleKey(e *event) {
	k := e.keyed
	if k == nil {
		return
	}
	k.pending--
	if k.pending == 0 && !k.failing {
		s.proceed(k)
	}
}

// proceed makes the waiting events of a key ready, as far as they go to one topic.
func (s *shard) proceed(k *keyed) {
	if len(k.waiting) == 0 {
		if k.pending == 0 && s.keys[k.name] == k {
			delete(s.keys, k.name)
		}
		return
	}
	k.lane = s.lane(k.waiting[0].topic)
	n := 0
	for n < len(k.waiting) && k.waiting[n].topic == k.lane.topic {
		n++
	}
	k.lane.ready = append(k.lane.ready, k.waiting[:n]...)
	k.pending += n
	k.waiting = slices.Clone(k.waiting[n:])
}

// resume makes the events of failing keys ready whose backoff has ended.
func (s *shard) resume(now time.Time) {
	for k := range s.failing {
		if !k.until.After(now) {
			k.failing = false
			delete(s.failing, k)
			s.proceed(k)
		}
	}
}

// idle reports whether nothing is in flight or waits for its record.
func (s *shard) idle() bool { return s.unsaved == 0 && !s.moving }
