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
	// maxStreams bounds how many open pages are kept up to date at once, and maxOfUser how many of one user. Users without a name have
	// no such limit, because they may be many.
	maxStreams = 100
	maxOfUser  = 10
	// tick is the interval between checks for changes, and beat the interval between keep-alive events.
	tick = time.Second
	beat = 10 * time.Second
	// maxStream is the lifetime of a connection. The browser then opens another one, which is authorized again.
	maxStream = 5 * time.Minute
	// reconnect is how long the browser waits before it does so. The page says that the connection is lost only after a longer time.
	reconnect = 500 * time.Millisecond
)

// Streams are the streams of open pages. They are safe for concurrent use.
type Streams struct {
	slots   chan struct{} // one for each open stream
	closed  chan struct{}
	closing sync.Once

	mu   sync.Mutex
	open map[string]int // by user
}

// New returns Streams without open streams.
func New() *Streams {
	return &Streams{slots: make(chan struct{}, maxStreams), closed: make(chan struct{}), open: map[string]int{}}
}

// Close ends the streams. It may be called several times.
func (s *Streams) Close() { s.closing.Do(func() { close(s.closed) }) }

// add adds n to the number of the user's open streams, and returns it.
func (s *Streams) add(user string, n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := s.open[user] + n
	if s.open[user] = open; open == 0 {
		delete(s.open, user)
	}
	return open
}

// Serve sends each new version to the user's page, until the page is closed.
func (s *Streams) Serve(w http.ResponseWriter, r *http.Request, user string, current func() string) {
	defer s.add(user, -1)
	if s.add(user, 1) > maxOfUser && user != "" {
		http.Error(w, "You have too many pages open.", http.StatusTooManyRequests)
		return
	}
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
	if _, err := fmt.Fprintf(w, "retry: %d\n\n", reconnect.Milliseconds()); err != nil {
		return
	}
	last, sent := "", time.Now()
	for {
		version := current()
		if version != last || time.Since(sent) >= beat {
			event := "beat"
			if version != last {
				event = "changed"
			}
			if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, version); err != nil || flush.Flush() != nil {
				return // the page is closed
			}
			last, sent = version, time.Now()
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
func Version(versions []string) string {
	sum := sha256.Sum256([]byte(strings.Join(versions, " ")))
	return hex.EncodeToString(sum[:8])
}
