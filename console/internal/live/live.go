// Package live tells open pages when what they show has changed, by server-sent events.
package live

import (
	"fmt"
	"net/http"
	"sync"
	"time"
)

const (
	// maxStreams is how many open pages are kept up to date at once.
	maxStreams = 100
	// tick is how often a page that is open may change, and beat how often it hears that nothing has.
	tick = time.Second
	beat = 10 * time.Second
	// maxStream is how long one connection lives; the browser opens another one, and is authorized again.
	maxStream = 5 * time.Minute
)

// Streams are those of pages that are open. They are safe for concurrent use.
type Streams struct {
	slots   chan struct{} // one for each
	closed  chan struct{}
	closing sync.Once
}

// New returns Streams, of which none is open.
func New() *Streams {
	return &Streams{slots: make(chan struct{}, maxStreams), closed: make(chan struct{})}
}

// Close ends the streams. It may be called several times.
func (s *Streams) Close() { s.closing.Do(func() { close(s.closed) }) }

// Serve tells each version that is another than the one before, until the page is closed.
func (s *Streams) Serve(w http.ResponseWriter, r *http.Request, current func() string) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		http.Error(w, "Too many pages are open.", http.StatusServiceUnavailable)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	flush := http.NewResponseController(w)
	_ = flush.SetWriteDeadline(time.Time{}) // not all writers have one
	end, ticks := time.NewTimer(maxStream), time.NewTicker(tick)
	defer end.Stop()
	defer ticks.Stop()
	last, told := "", time.Now()
	for {
		version := current()
		if version != last || time.Since(told) >= beat {
			event := "beat"
			if version != last {
				event = "changed"
			}
			if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, version); err != nil || flush.Flush() != nil {
				return // the page is closed
			}
			last, told = version, time.Now()
		}
		select {
		case <-ticks.C:
		case <-end.C:
			return
		case <-s.closed:
			return
		case <-r.Context().Done():
			return
		}
	}
}
