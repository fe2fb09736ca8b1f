package outbox

import (
	"strconv"
	"strings"
	"sync"
)

// wakers are this process's relays and notifiers, by schema. A process may have several databases with outboxes of one
// schema name; then a commit in one wakes the relays of both, which costs an empty read.
var wakers = struct {
	sync.Mutex
	bySchema map[string]map[*wakes]struct{}
}{bySchema: map[string]map[*wakes]struct{}{}}

// wakes collects what was told of new events until somebody looks. It is safe for concurrent use.
type wakes struct {
	signal chan struct{} // gets one when there is something

	mu     sync.Mutex
	hashes []int64
	all    bool // anything may be new
	look   bool // failed events, too
}

// maxHashes bounds what is collected; beyond it every shard is looked at.
const maxHashes = 256

func newWakes() *wakes { return &wakes{signal: make(chan struct{}, 1)} }

// listenForWakeUps lets w collect the commits with events in the schema, until stop is called.
func listenForWakeUps(schema string, w *wakes) (stop func()) {
	wakers.Lock()
	defer wakers.Unlock()
	if wakers.bySchema[schema] == nil {
		wakers.bySchema[schema] = map[*wakes]struct{}{}
	}
	wakers.bySchema[schema][w] = struct{}{}
	return func() {
		wakers.Lock()
		defer wakers.Unlock()
		delete(wakers.bySchema[schema], w)
		if len(wakers.bySchema[schema]) == 0 {
			delete(wakers.bySchema, schema)
		}
	}
}

// wakeUp tells of committed events whose keys have these hashes; of none: it may be any.
func wakeUp(schema string, hashes ...int64) {
	wakers.Lock()
	defer wakers.Unlock()
	for w := range wakers.bySchema[schema] {
		w.add(hashes)
	}
}

// add never blocks.
func (w *wakes) add(hashes []int64) {
	w.mu.Lock()
	if len(hashes) == 0 || len(w.hashes)+len(hashes) > maxHashes {
		w.all, w.hashes = true, nil
	} else if !w.all {
		w.hashes = append(w.hashes, hashes...)
	}
	w.mu.Unlock()
	signal(w.signal)
}

// addLook tells that there may be work on failed events, too.
func (w *wakes) addLook() {
	w.mu.Lock()
	w.look = true
	w.mu.Unlock()
	w.add(nil)
}

// take returns what was collected.
func (w *wakes) take() (hashes []int64, all, look bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	hashes, all, look = w.hashes, w.all, w.look
	w.hashes, w.all, w.look = nil, false, false
	return hashes, all, look
}

// signal never blocks: one waiting signal says all that two would.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// A notification's payload names the hashes, as long as they are few; an empty one says that it may be anything.

func notice(hashes []int64, all bool) string {
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

func (w *wakes) addNotice(payload string) {
	if payload == "" {
		w.addLook()
		return
	}
	var hashes []int64
	for part := range strings.SplitSeq(payload, ",") {
		h, err := strconv.ParseInt(part, 10, 64)
		if err != nil || h < 0 {
			w.addLook() // from a newer program
			return
		}
		hashes = append(hashes, h)
	}
	w.add(hashes)
}
