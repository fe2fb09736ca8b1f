package relay

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/millrace/outbox/internal/backoff"
	"github.com/millrace-go/millrace/outbox/internal/step"
)

// key is the state of one key in a shard, or of a failed event without a key.
type key struct {
	name    string
	queue   *queue        // where its pending events are
	pending int           // ready or being sent
	waiting []*step.Event // in order: they wait for pending events of another topic, for deferred events, or for the end of the backoff

	failing bool
	retry   backoff.Backoff
}

// queueOf returns the topic queue of an event that the shard holds.
func queueOf(e *step.Event) *queue { return e.InQueue.(*queue) }

// keyOf returns the key of an event that was taken out of its queue. An event without a key gets one of its own.
func keyOf(e *step.Event) *key {
	k, _ := e.OfKey.(*key)
	if k == nil {
		k = &key{queue: queueOf(e), pending: 1}
		e.OfKey = k
	}
	return k
}

// hold inserts an event by its number, without its payload, which is read again before it is sent.
func (s *shard) hold(k *key, e *step.Event) {
	s.unload(e)
	i, _ := slices.BinarySearchFunc(k.waiting, e, func(w, e *step.Event) int {
		return cmp.Or(cmp.Compare(w.Seq, e.Seq), cmp.Compare(w.Arrival, e.Arrival))
	})
	k.waiting = slices.Insert(k.waiting, i, e)
}

// arrive puts a new event into its queue, or holds it.
func (s *shard) arrive(e *step.Event) {
	q := queueOf(e)
	if q.topic.Paused != 0 {
		s.unload(e)
	}
	if e.Key == "" {
		q.ready = append(q.ready, e)
		return
	}
	k := s.keys[e.Key]
	if k == nil {
		if _, ok := s.blocked[e.Key]; ok && !s.waitsForDeferred(e) {
			s.block(e)
			return
		}
		k = &key{name: e.Key, queue: q}
		s.keys[e.Key] = k
	}
	e.OfKey = k
	if k.failing || len(k.waiting) > 0 || k.pending > 0 && k.queue != q || s.waitsForDeferred(e) {
		s.hold(k, e)
		if k.pending == 0 && !k.failing {
			s.proceed(k)
		}
		return
	}
	k.queue = q
	k.pending++
	q.ready = append(q.ready, e)
}

// settleKey records that an event of the key is no longer pending. After the last one, the waiting events become ready.
func (s *shard) settleKey(e *step.Event) {
	k, _ := e.OfKey.(*key)
	if k == nil {
		return
	}
	k.pending--
	if k.pending == 0 && !k.failing {
		s.proceed(k)
	}
}

// proceed makes the waiting events of a key ready, up to the first one of another topic.
func (s *shard) proceed(k *key) {
	delete(s.stalled, k)
	if len(k.waiting) == 0 {
		if _, ok := s.blocked[k.name]; (ok || k.pending == 0) && s.keys[k.name] == k {
			delete(s.keys, k.name)
		}
		return
	}
	n := 0
	if _, ok := s.blocked[k.name]; ok {
		for n < len(k.waiting) && !s.waitsForDeferred(k.waiting[n]) {
			s.block(k.waiting[n])
			n++
		}
		if k.waiting = slices.Clone(k.waiting[n:]); len(k.waiting) > 0 {
			s.stalled[k] = struct{}{}
		} else if s.keys[k.name] == k {
			delete(s.keys, k.name)
		}
		return
	}
	k.queue = queueOf(k.waiting[0])
	for n < len(k.waiting) && queueOf(k.waiting[n]) == k.queue && !s.waitsForDeferred(k.waiting[n]) {
		n++
	}
	if n == 0 {
		s.stalled[k] = struct{}{}
		return
	}
	k.queue.ready = append(k.queue.ready, k.waiting[:n]...)
	k.pending += n
	k.waiting = slices.Clone(k.waiting[n:])
}

// unstall checks the keys that wait for deferred events again.
func (s *shard) unstall() {
	for _, k := range sorted(slices.Collect(maps.Keys(s.stalled))) {
		if k.pending == 0 && !k.failing {
			s.proceed(k)
		}
	}
}

// resume makes events ready when the backoff of their key has ended.
func (s *shard) resume(now time.Time) {
	if s.resumeAt.IsZero() || s.resumeAt.After(now) {
		return
	}
	s.resumeAt = time.Time{}
	var due []*key
	for k := range s.failing {
		if k.retry.Until.After(now) {
			s.resumeAt = backoff.Earliest(s.resumeAt, k.retry.Until)
		} else {
			due = append(due, k)
		}
	}
	for _, k := range sorted(due) {
		k.failing = false
		delete(s.failing, k)
		if k.pending == 0 {
			s.proceed(k)
		}
	}
}

// sorted sorts keys in a deterministic order.
func sorted(keys []*key) []*key {
	slices.SortFunc(keys, func(a, b *key) int { return cmp.Or(cmp.Compare(a.first(), b.first()), cmp.Compare(a.name, b.name)) })
	return keys
}

func (k *key) first() int64 {
	if len(k.waiting) == 0 {
		return 0
	}
	return k.waiting[0].Seq
}

// block moves an event to the failed events, because an earlier event of its key is there.
func (s *shard) block(e *step.Event) {
	s.unload(e)
	e.Leaving = true
	s.aside = append(s.aside, step.Aside{Event: e, State: step.Blocked})
}

// fail moves an event to the failed events, with the events of its key that wait for it.
func (s *shard) fail(k *key, a step.Aside) {
	s.unload(a.Event)
	a.Leaving = true
	s.aside = append(s.aside, a)
	if k.name == "" {
		return
	}
	s.blocked[k.name] = struct{}{}
	k.failing = false
	delete(s.failing, k)
	s.proceed(k)
}

// free makes events of the key ordinary again, because none of its events has failed any more.
func (s *shard) free(name string) {
	if _, ok := s.blocked[name]; !ok {
		return
	}
	if slices.ContainsFunc(s.aside, func(a step.Aside) bool { return a.Moving && a.Key == name }) { // one may be there by now
		s.promote[name] = struct{}{}
		return
	}
	delete(s.blocked, name)
	if k := s.keys[name]; k != nil && k.pending == 0 && !k.failing {
		defer s.proceed(k)
	}
	var rest []step.Aside
	for _, a := range s.aside {
		if a.Key == name {
			a.OfKey, a.Leaving = nil, false
			s.arrive(a.Event)
			continue
		}
		rest = append(rest, a)
	}
	s.aside = rest
}
