// Package deferral decides which events of a topic a shard leaves in the table because the topic has used up its quota. It does no I/O,
// has no clock and starts no goroutine.
package deferral

import "hash/maphash"

// maxKeys is how many keys of a topic's deferred events are tracked separately. Beyond it, every key counts as deferred.
const maxKeys = 1_000_000

var seed = maphash.MakeSeed()

// Hash returns what a Deferral stores of a key.
func Hash(key string) uint64 { return maphash.String(seed, key) }

// NoScan says that a row was found by a read that is no part of a scan.
const NoScan = int64(1<<63 - 1)

// Deferral tracks the events of a topic that a shard leaves in the table. It is not safe for concurrent use.
type Deferral struct {
	count   *int // topics of the shard that have deferred events
	any     bool
	last    int64            // the highest number that was taken
	from    int64            // rows below it were taken
	to      int64            // the highest number that was deferred
	keys    map[uint64]int64 // keys of deferred rows, with the first number of each
	refused bool             // the current scan has deferred a row
	all     bool             // there are too many keys to track them separately
}

// New returns a Deferral without events. It counts itself in topics while it has some.
func New(topics *int) Deferral { return Deferral{count: topics} }

// Any reports whether events are deferred.
func (d *Deferral) Any() bool { return d.any }

// From is the number from which deferred events are read.
func (d *Deferral) From() int64 { return d.from }

// Admit reports whether the shard may hold a row that it does not hold yet. Otherwise the row is deferred. full says that the quota is
// used up. scan is the number above which a scan returns all rows, in order, or NoScan. A scan that starts below the deferred rows returns
// them again.
func (d *Deferral) Admit(seq int64, key string, full bool, scan int64) bool {
	if d.any && scan < d.from && seq >= d.from && !full {
		if d.from = seq + 1; d.from > d.to { // this was the last one
			d.end()
		}
	}
	if d.any && seq < d.from || !d.any && (!full || seq < d.last) {
		d.Take(seq)
		return true
	}
	if !d.any {
		*d = Deferral{count: d.count, any: true, last: d.last, from: seq, keys: map[uint64]int64{}}
		*d.count++
	}
	d.to, d.refused = max(d.to, seq), true
	if key == "" || d.all {
		return false
	}
	h := Hash(key)
	if _, ok := d.keys[h]; !ok {
		d.keys[h] = seq
	}
	if len(d.keys) > maxKeys {
		d.keys, d.all = nil, true
	}
	return false
}

// Take records that the shard holds a row that a read of the deferred ones has returned.
func (d *Deferral) Take(seq int64) { d.last = max(d.last, seq) }

// Drained records that the deferred rows up to upTo were read. If there may be more of them, last is the number of the last one read;
// otherwise it is 0.
func (d *Deferral) Drained(upTo, last int64) {
	switch {
	case !d.any:
	case last > 0 && last < d.to:
		d.from = last + 1
	case upTo < d.to: // the reads do not cover the rows above upTo
		d.from = max(d.from, upTo+1)
	default:
		d.end()
	}
}

// Scanned ends the deferral if a scan, which has read every row above a number, covers the deferred rows and deferred none.
func (d *Deferral) Scanned(scan int64) {
	if d.any && scan < d.from && !d.refused {
		d.end()
	}
	d.refused = false
}

func (d *Deferral) end() {
	*d.count--
	*d = Deferral{count: d.count, last: d.last}
}

// Precedes reports whether an event with a lower number and this hash of its key may be deferred.
func (d *Deferral) Precedes(hash uint64, seq int64) bool {
	if !d.any || d.from >= seq {
		return false
	}
	first, ok := d.keys[hash]
	return d.all || ok && first < seq
}
