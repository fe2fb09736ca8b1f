package outbox

import "sync"

// wakers are this process's relays and notifiers, by schema. A process may have several databases with outboxes of one
// schema name; then a commit in one wakes the relays of both, which costs an empty read.
var wakers = struct {
	sync.Mutex
	bySchema map[string]map[chan struct{}]struct{}
}{bySchema: map[string]map[chan struct{}]struct{}{}}

// onWakeUp returns a channel that receives after commits with events in the schema, several commits possibly as one.
func onWakeUp(schema string) (c chan struct{}, stop func()) {
	c = make(chan struct{}, 1)
	wakers.Lock()
	defer wakers.Unlock()
	if wakers.bySchema[schema] == nil {
		wakers.bySchema[schema] = map[chan struct{}]struct{}{}
	}
	wakers.bySchema[schema][c] = struct{}{}
	return c, func() {
		wakers.Lock()
		defer wakers.Unlock()
		delete(wakers.bySchema[schema], c)
		if len(wakers.bySchema[schema]) == 0 {
			delete(wakers.bySchema, schema)
		}
	}
}

// wakeUp tells of committed events whose keys have these hashes.
func wakeUp(schema string, _ ...int64) {
	wakers.Lock()
	defer wakers.Unlock()
	for c := range wakers.bySchema[schema] {
		signal(c)
	}
}

// signal never blocks: one waiting signal says all that two would.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
