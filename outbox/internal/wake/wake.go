// Package wake tells the relays and notifiers of a process that events were committed, and puts that into the payload of a
// notification for those of other processes. What it tells is a hint: a relay's poll finds every event.
package wake

import (
	"strconv"
	"strings"
	"sync"
)

// listeners are this process's relays and notifiers, by schema. A process may have several databases with outboxes of one
// schema name; then a commit in one wakes the relays of both, which costs an empty read.
var listeners = struct {
	sync.Mutex
	bySchema map[string]map[*Collector]struct{}
}{bySchema: map[string]map[*Collector]struct{}{}}

// Collector collects what was told of new events until somebody looks. It is safe for concurrent use.
type Collector struct {
	signal chan struct{} // gets one when there is something

	mu     sync.Mutex
	hashes []int64
	all    bool // anything may be new
	look   bool // failed events, too
}

// maxHashes bounds what is collected; beyond it every shard is looked at.
const maxHashes = 256

// New returns a Collector that has nothing.
func New() *Collector { return &Collector{signal: make(chan struct{}, 1)} }

// Listen lets w collect the commits with events in the schema, until stop is called.
func Listen(schema string, w *Collector) (stop func()) {
	listeners.Lock()
	defer listeners.Unlock()
	if listeners.bySchema[schema] == nil {
		listeners.bySchema[schema] = map[*Collector]struct{}{}
	}
	listeners.bySchema[schema][w] = struct{}{}
	return func() {
		listeners.Lock()
		defer listeners.Unlock()
		delete(listeners.bySchema[schema], w)
		if len(listeners.bySchema[schema]) == 0 {
			delete(listeners.bySchema, schema)
		}
	}
}

// Tell tells the listeners of committed events whose keys have these hashes; of none: it may be any.
func Tell(schema string, hashes ...int64) {
	listeners.Lock()
	defer listeners.Unlock()
	for w := range listeners.bySchema[schema] {
		w.Add(hashes)
	}
}

// Add never blocks. No hashes: it may be any event.
func (w *Collector) Add(hashes []int64) {
	w.mu.Lock()
	if len(hashes) == 0 || len(w.hashes)+len(hashes) > maxHashes {
		w.all, w.hashes = true, nil
	} else if !w.all {
		w.hashes = append(w.hashes, hashes...)
	}
	w.mu.Unlock()
	select {
	case w.signal <- struct{}{}:
	default: // one waiting signal says all that two would
	}
}

// AddLook tells that there may be work on failed events, too.
func (w *Collector) AddLook() {
	w.mu.Lock()
	w.look = true
	w.mu.Unlock()
	w.Add(nil)
}

// Signal gets a value when there is something to take.
func (w *Collector) Signal() <-chan struct{} { return w.signal }

// Take returns what was collected, and forgets it.
func (w *Collector) Take() (hashes []int64, all, look bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	hashes, all, look = w.hashes, w.all, w.look
	w.hashes, w.all, w.look = nil, false, false
	return hashes, all, look
}

// Payload is that of a notification. It names the hashes, as long as they are few; an empty one says that it may be anything.
func Payload(hashes []int64, all bool) string {
	const few = 100 // of at most 20 bytes: PostgreSQL takes 8,000
	if all || len(hashes) > few {
		return ""
	}
	parts := make([]string, len(hashes))
	for i, h := range hashes {
		parts[i] = strconv.FormatInt(h, 10)
	}
	return strings.Join(parts, ",")
}

// AddPayload takes a notification.
func (w *Collector) AddPayload(payload string) {
	if payload == "" {
		w.AddLook()
		return
	}
	var hashes []int64
	for part := range strings.SplitSeq(payload, ",") {
		h, err := strconv.ParseInt(part, 10, 64)
		if err != nil || h < 0 {
			w.AddLook() // from a newer program
			return
		}
		hashes = append(hashes, h)
	}
	w.Add(hashes)
}
