// Package wake tells the relays and notifiers of this process that events were committed. It also encodes that as the payload of a
// notification for other processes. A wake-up is only a hint: a relay's poll finds every event.
package wake

import (
	"strconv"
	"strings"
	"sync"
)

// listeners holds this process's relays and notifiers, by schema. If a process uses several databases with outboxes in schemas of the
// same name, a commit in one also wakes the relays of the others, which costs an empty read.
var listeners = struct {
	sync.Mutex
	bySchema map[string]map[*Collector]struct{}
}{bySchema: map[string]map[*Collector]struct{}{}}

// Collector collects wake-ups until they are taken. It is safe for concurrent use.
type Collector struct {
	signal chan struct{} // has a value if there is something to take

	mu     sync.Mutex
	hashes []int64
	all    bool // any shard may have new events
	look   bool // failed events may have work, too
}

// maxHashes bounds what is collected. Beyond it, every shard is read.
const maxHashes = 256

// New returns an empty Collector.
func New() *Collector { return &Collector{signal: make(chan struct{}, 1)} }

// Listen makes w collect the commits with events in the schema, until stop is called.
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

// Tell tells the listeners of committed events whose keys have these hashes. Without hashes, any event may be new.
func Tell(schema string, hashes ...int64) {
	listeners.Lock()
	defer listeners.Unlock()
	for w := range listeners.bySchema[schema] {
		w.Add(hashes)
	}
}

// Add adds the hashes of new events, without blocking. No hashes means that any event may be new.
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
	default: // one waiting signal is enough
	}
}

// AddLook records that failed events may have work, too.
func (w *Collector) AddLook() {
	w.mu.Lock()
	w.look = true
	w.mu.Unlock()
	w.Add(nil)
}

// Signal has a value if there is something to take.
func (w *Collector) Signal() <-chan struct{} { return w.signal }

// Take returns what was collected, and forgets it.
func (w *Collector) Take() (hashes []int64, all, look bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	hashes, all, look = w.hashes, w.all, w.look
	w.hashes, w.all, w.look = nil, false, false
	return hashes, all, look
}

// Payload returns the payload of a notification. It holds the hashes if they are few. An empty payload means that any event may be new.
func Payload(hashes []int64, all bool) string {
	const few = 100 // of at most 20 bytes: PostgreSQL allows 8,000
	if all || len(hashes) > few {
		return ""
	}
	parts := make([]string, len(hashes))
	for i, h := range hashes {
		parts[i] = strconv.FormatInt(h, 10)
	}
	return strings.Join(parts, ",")
}

// AddPayload adds the contents of a notification.
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
