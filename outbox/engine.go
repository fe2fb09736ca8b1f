package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/millrace-go/millrace/transport"
)

// engine is the relay at work: one loop that owns the shards, and goroutines that read, publish, delete and move rows for
// it, whose results come back as functions to be run by the loop. At most one read and one delete are under way at a time,
// one batch for each topic of a shard, and one move for each shard.
type engine struct {
	relay   *Relay
	reader  *reader
	hard    context.Context //nolint:containedctx // the engine lives as long as Run: it ends when draining does
	results chan func(now time.Time)
	running int // goroutines

	shards  map[int16]*shard
	success map[string]time.Time // when the broker last took an event, by topic

	reading   bool
	readAfter time.Time     // for pacing, or after an error
	readWait  time.Duration // after an error
	next      int           // the shard that is read first

	acked     []acked // published, and not deleted
	ackedAt   time.Time
	saving    bool
	saveAfter time.Time
	saveWait  time.Duration
	blocked   bool    // a shard waits for its deletes
	ghosts    []acked // deleted while a read was under way that may return them

	batches      bool   // the publisher takes batches
	careful      *event // is being sent alone, or was, and waits for its delete
	carefulRetry bool   // one of a side table is being sent alone
	ending       bool
	pollAt       time.Time
	polling      bool
}

type acked struct {
	shard *shard
	event *event
}

const (
	// maxSingles is how many events a publisher without batches gets at once.
	maxSingles = 100
	// exchangeTimeout bounds a round trip: a connection that says nothing for so long is given up.
	exchangeTimeout = time.Minute
	// batchBytes bounds what is read of a shard at once, what one batch sends and what a shard holds in memory, one larger
	// event apart.
	batchBytes = 16 << 20
	// saveDelay is how long deletes are collected.
	saveDelay = 15 * time.Millisecond
	// fullSave is how many make it worth at once, and maxSave how many one delete takes.
	fullSave, maxSave = 2000, 4000
	// firstRead is how many rows are read of a shard while their size is not known.
	firstRead = 20
	// firstSize is what a row is taken for meanwhile.
	firstSize = 64 << 10
	// maxRead is how many rows one round trip reads of several shards, or two batches if those are more.
	maxRead = 4000
	// maxHeld is how many events of a shard are held, most of them without their payload, while a topic or keys do not get
	// on; then the shard waits.
	maxHeld = 20_000
	// maxPace is how long reads wait for one another under load, so that each finds more.
	maxPace = 25 * time.Millisecond
	// rescanEvery is how often a shard is read from its start, whatever the memory says.
	rescanEvery = 5 * time.Second
)

func newEngine(hard context.Context, r *Relay) *engine {
	e := &engine{
		relay: r, reader: newReader(r.pool, r.cfg.Schema), hard: hard, results: make(chan func(time.Time), 64),
		shards: map[int16]*shard{}, success: map[string]time.Time{},
	}
	e.reader.trusting = r.trusting
	_, e.batches = r.publisher.(transport.BatchPublisher)
	return e
}

// do runs f in a goroutine, and what it returns in the loop.
func (e *engine) do(f func() func(now time.Time)) {
	e.running++
	go func() { e.results <- f() }()
}

// run works until ctx has ended and nothing is in flight any more, or until hard has ended.
func (e *engine) run(ctx context.Context) {
	stopped := ctx.Done()
	for {
		if e.ending && e.drained() {
			return
		}
		timer := time.NewTimer(e.step(time.Now()))
		select {
		case <-stopped:
			stopped, e.ending = nil, true
		case <-e.hard.Done():
			timer.Stop()
			e.abandon()
			return
		case w := <-e.relay.leases:
			e.apply(w)
		case <-e.relay.wakes.signal:
			e.wake()
		case f := <-e.results:
			e.running--
			f(time.Now())
		case <-timer.C:
		}
		timer.Stop()
		for more := true; more; { // whatever else there is, before the next step
			select {
			case f := <-e.results:
				e.running--
				f(time.Now())
			default:
				more = false
			}
		}
	}
}

// drained reports whether nothing is in flight and everything acknowledged is deleted.
func (e *engine) drained() bool { return e.running == 0 && len(e.acked) == 0 }

// abandon waits a last time for what is under way: its contexts have ended, but a publisher without one may block for ever.
func (e *engine) abandon() {
	for _, s := range e.shards {
		s.cancel()
	}
	deadline := time.After(flushTimeout)
	for e.running > 0 {
		select {
		case f := <-e.results:
			e.running--
			f(time.Now())
		case <-deadline:
			e.relay.cfg.Logger.Error("the publisher does not return: what it was given may be published again", "batches", e.running)
			go func(n int) { // so that they can end
				for range n {
					<-e.results
				}
			}(e.running)
			e.flush()
			return
		}
	}
	e.flush()
}

// flushTimeout bounds the last delete.
const flushTimeout = 5 * time.Second

// flush deletes what was published, although the contexts have ended: the broker has it.
func (e *engine) flush() {
	if len(e.acked) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.hard), flushTimeout)
	defer cancel()
	if err := e.relay.delete(ctx, e.acked); err != nil {
		e.relay.cfg.Logger.WarnContext(ctx, "delete published events: they will be published again", "events", len(e.acked), "error", err)
	}
}

// step starts what can be started and returns how long there is nothing more to do.
func (e *engine) step(now time.Time) time.Duration {
	wait := time.Hour
	until := func(t time.Time) { wait = min(wait, max(t.Sub(now), 0)) }
	e.blocked = false
	for _, s := range e.shards {
		if s.ctx.Err() != nil {
			continue
		}
		if !e.ending && !s.stopping {
			s.resume(now)
			for k := range s.failing {
				until(k.until)
			}
			e.publish(s, now)
			for _, l := range s.lanes {
				if l.until.After(now) && len(l.ready) > 0 {
					until(l.until)
				}
				if len(l.sending) > 0 && now.Sub(l.since) <= slow && !s.hungry(e.relay.cfg.BatchSize, now) {
					until(l.since.Add(slow + time.Millisecond))
				}
			}
		}
		e.move(s, now)
		if s.moveAfter.After(now) {
			until(s.moveAfter)
		}
	}
	if len(e.acked) > 0 && !e.saving {
		due := e.ackedAt.Add(saveDelay)
		if e.ending || e.blocked || len(e.acked) >= fullSave {
			due = now
		}
		if e.saveAfter.After(due) {
			due = e.saveAfter
		}
		if due.After(now) {
			until(due)
		} else {
			e.save()
		}
	}
	if e.ending {
		return wait
	}
	if now.Before(e.pollAt) {
		until(e.pollAt)
	} else if !e.polling {
		e.poll(now)
		until(e.pollAt)
	}
	if !e.reading {
		if due := e.read(now); !due.IsZero() {
			until(due)
		}
	}
	return wait
}

// publish starts a batch in each lane of the shard that is free.
func (e *engine) publish(s *shard, now time.Time) {
	cfg := e.relay.cfg
	for _, l := range s.lanes {
		if len(l.sending) > 0 || len(l.ready) == 0 {
			if len(l.ready) == 0 && len(l.sending) == 0 && l.wait == 0 {
				delete(s.lanes, l.topic)
			}
			continue
		}
		limit := min(cfg.BatchSize, cfg.MaxUnsaved-s.unsaved)
		if 2*limit < min(cfg.BatchSize, cfg.MaxUnsaved, len(l.ready)) || limit <= 0 { // rather wait for the deletes than send crumbs
			e.blocked = true
			return
		}
		if !e.batches { // one by one, and all within PublishTimeout
			limit = min(limit, maxSingles)
		}
		if s.careful > 0 {
			if e.cautious() {
				e.blocked = true
				return
			}
			limit = 1
		}
		batch := s.next(l, limit, now)
		if len(batch) == 0 {
			continue
		}
		careful := s.careful > 0
		if careful {
			s.careful--
			if e.parkSuspect(s, l, batch) {
				continue
			}
			e.careful = batch[0]
		}
		e.send(s, l, batch, careful)
	}
}

func (e *engine) send(s *shard, l *lane, batch []*event, careful bool) {
	rows := make([]*row, len(batch))
	for i, b := range batch {
		rows[i] = &b.row
	}
	e.do(func() func(time.Time) {
		results := e.relay.sendNoted(s, l.topic, rows, careful)
		return func(now time.Time) {
			if careful && results[0] != nil { // the relay has survived it
				e.careful = nil
				if s.suspect == rows[0].eventID {
					s.suspect, s.attempts = "", 0
				}
			}
			e.settle(s, l, results, now)
		}
	})
}

func (e *engine) settle(s *shard, l *lane, results []error, now time.Time) {
	if slices.Contains(results, nil) {
		e.success[l.topic] = now
	}
	published, failed := s.settle(l, results, e.success[l.topic], now, e.relay.cfg.MaxAttempts)
	for _, p := range published {
		if len(e.acked) == 0 {
			e.ackedAt = now
		}
		e.acked = append(e.acked, acked{s, p})
	}
	e.relay.observer.settled(l.topic, len(results), published, now)
	if failed.events > 0 && s.ctx.Err() == nil {
		e.relay.cfg.Logger.Warn("publish events", "shard", s.id, "topic", l.topic, "failed_keys", failed.events,
			"event_id", failed.first.eventID, "retry_in", max(l.until.Sub(now), 0).Round(time.Millisecond), "error", failed.err)
	}
}

// save deletes what was published.
func (e *engine) save() {
	batch := e.acked[:min(len(e.acked), maxSave)]
	e.acked = slices.Clone(e.acked[len(batch):])
	e.saving = true
	e.do(func() func(time.Time) {
		ctx, cancel := context.WithTimeout(e.hard, exchangeTimeout)
		defer cancel()
		err := e.relay.delete(ctx, batch)
		return func(now time.Time) {
			e.saving = false
			if err != nil {
				e.acked = append(batch, e.acked...)
				e.saveWait = backoff(e.saveWait)
				e.saveAfter = now.Add(e.saveWait)
				if e.hard.Err() == nil {
					e.relay.cfg.Logger.Warn("delete published events", "events", len(batch), "retry_in", e.saveWait, "error", err)
				}
				return
			}
			e.saveWait, e.ackedAt = 0, now
			for _, a := range batch {
				a.shard.unsaved--
				e.letGo(a)
				if a.shard.strikes > 0 && a.shard.careful == 0 {
					e.progress(a.shard)
				}
			}
		}
	})
}

// letGo forgets an event whose row is gone, unless a read is under way that may still see it.
func (e *engine) letGo(a acked) {
	a.event.gone = true
	if e.careful == a.event {
		e.careful = nil
	}
	if e.reading {
		e.ghosts = append(e.ghosts, a)
		return
	}
	a.shard.drop(a.event)
}

// poll looks for what nobody told of: rows of transactions that Millrace did not begin, delayed events, and work on failed
// ones.
func (e *engine) poll(now time.Time) {
	e.pollAt = now.Add(e.relay.cfg.PollInterval)
	for _, s := range e.shards {
		s.woken = true
	}
	held := e.held()
	if len(held) == 0 {
		return
	}
	e.polling = true
	e.do(func() func(time.Time) {
		due, next, err := e.relay.lookAround(e.hard, held)
		return func(now time.Time) {
			e.polling = false
			if err != nil {
				if e.hard.Err() == nil {
					e.relay.cfg.Logger.Warn("look for failed and delayed events", "error", err)
				}
				return
			}
			for _, id := range due {
				if s := e.shards[id]; s != nil {
					s.retry = true
				}
			}
			if next > 0 && now.Add(next).Before(e.pollAt) {
				e.pollAt = now.Add(next)
			}
		}
	})
}

// wake passes on what was told of new events.
func (e *engine) wake() {
	hashes, all, look := e.relay.wakes.take()
	if look { // an operator's command may have come
		e.pollAt = time.Time{}
	}
	if all {
		for _, s := range e.shards {
			s.woken = true
		}
		return
	}
	n := int64(e.relay.shardCount.Load())
	for _, h := range hashes {
		if s := e.shards[int16(h%max(n, 1))]; s != nil {
			s.woken = true
		}
	}
}

func (e *engine) held() []int16 {
	held := make([]int16, 0, len(e.shards)) // never nil, which would be NULL
	for id := range e.shards {
		held = append(held, id)
	}
	slices.Sort(held)
	return held
}
