// Package live notifies open pages of changes by server-sent events.
package live

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	// maxStreams bounds how many open pages are kept up to date at once.
	maxStreams = 100
	// tick is the interval between checks for changes, and beat the interval between keep-alive events.
	tick = time.Second
	beat = 10 * time.Second
	// maxStream is the lifetime of a connection. The browser then opens another one, which is authorized again.
	maxStream = 5 * time.Minute
)

// Streams are the streams of open pages. They are safe for concurrent use.
type Streams struct {
	slots   chan struct{} // one for each open stream
	closed  chan struct{}
	closing sync.Once
}

// New returns Streams without open streams.
func New() *Streams {
	return &Streams{slots: make(chan struct{}, maxStreams), closed: make(chan struct{})}
}

// Close ends the streams. It may be called several times.
func (s *Streams) Close() { s.closing.Do(func() { close(s.closed) }) }

// Serve sends each new version to the page, until the page is closed.
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
	_ = flush.SetWriteDeadline(time.Time{}) // not all writers support it
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

// Version returns a text that changes when one of the versions does.
func Version(told []string) string {
	sum := sha256.Sum256([]byte(strings.Join(told, " ")))
	return hex.EncodeToString(sum[:8])
}
