package outbox

import (
	"slices"
	"time"
)

// group is rows of one topic, in order.
type group struct {
	topic string
	rows  []row
}

func (g group) without(keys map[string]bool) []row {
	if len(keys) == 0 {
		return g.rows
	}
	return slices.DeleteFunc(g.rows, func(e row) bool { return e.key != "" && keys[e.key] })
}

// plan arranges rows, which are in order, in waves that are published one after another; the groups of a wave, one per
// topic, may be published at once. A key whose events go to several topics keeps its order across them: each change of
// its topic begins in a later wave. Usually that is one wave.
func plan(rows []row) [][]group {
	type place struct {
		wave  int
		topic string
	}
	var waves [][]group
	last := map[string]place{}
	for _, e := range rows {
		p := place{topic: e.topic}
		if before, ok := last[e.key]; ok && e.key != "" {
			p.wave = before.wave
			if before.topic != e.topic {
				p.wave++
			}
		}
		last[e.key] = p
		if p.wave == len(waves) {
			waves = append(waves, nil)
		}
		i := slices.IndexFunc(waves[p.wave], func(g group) bool { return g.topic == e.topic })
		if i < 0 {
			i = len(waves[p.wave])
			waves[p.wave] = append(waves[p.wave], group{topic: e.topic})
		}
		waves[p.wave][i].rows = append(waves[p.wave][i].rows, e)
	}
	return waves
}

const (
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 5 * time.Second
	// maxFailing bounds what is remembered of a shard's failing keys. That many fail when the broker is down; then the
	// shard waits. Below it, others go on however many fail.
	maxFailing = 20_000
)

func backoff(last time.Duration) time.Duration {
	return min(max(2*last, firstBackoff), maxBackoff)
}

// failing remembers the keys whose oldest event could not be published, so that others go on while they wait. It is a
// hint: after its loss they are tried again at once. The zero value is ready for use.
type failing struct {
	keys, ids map[string]failure // by key; by event ID for events without one
}

type failure struct {
	attempt int
	wait    time.Duration
	until   time.Time
}

func (f *failing) slot(e row) (map[string]failure, string) {
	if f.keys == nil {
		f.keys, f.ids = map[string]failure{}, map[string]failure{}
	}
	if e.key == "" {
		return f.ids, e.eventID
	}
	return f.keys, e.key
}

// note returns how long the key of the row waits, and how often it failed in a row.
func (f *failing) note(e row, now time.Time) (time.Duration, int) {
	m, k := f.slot(e)
	wait := backoff(m[k].wait)
	m[k] = failure{attempt: m[k].attempt + 1, wait: wait, until: now.Add(wait)}
	return wait, m[k].attempt
}

func (f *failing) clear(e row) {
	m, k := f.slot(e)
	delete(m, k)
}

// excluded returns the event IDs and keys that wait, and whether there are so many that nothing should be read.
func (f *failing) excluded(now time.Time) (ids, keys []string, full bool) {
	waiting := func(m map[string]failure) []string {
		out := []string{} // never nil, which would be NULL
		for k, e := range m {
			if e.until.After(now) {
				out = append(out, k)
			} else if now.Sub(e.until) > time.Minute {
				delete(m, k) // its rows are gone
			}
		}
		return out
	}
	ids, keys = waiting(f.ids), waiting(f.keys)
	return ids, keys, len(ids)+len(keys) >= maxFailing
}

// next returns the time to the earliest retry.
func (f *failing) next(now time.Time) (time.Duration, bool) {
	var first time.Time
	for _, m := range []map[string]failure{f.ids, f.keys} {
		for _, e := range m {
			if e.until.After(now) && (first.IsZero() || e.until.Before(first)) {
				first = e.until
			}
		}
	}
	return first.Sub(now), !first.IsZero()
}
