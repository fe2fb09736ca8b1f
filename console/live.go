package console

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
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

// live tells an open page when its figures have changed, by server-sent events. All streams of a database share its snapshot.
func (q *request) live() error {
	q.stream(func() string { return q.snapshot().told() })
	return nil
}

// stream tells each version that is another than the one before.
func (q *request) stream(current func() string) {
	select {
	case q.streams <- struct{}{}:
		defer func() { <-q.streams }()
	default:
		http.Error(q.w, "Too many pages are open.", http.StatusServiceUnavailable)
		return
	}
	h := q.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	flush := http.NewResponseController(q.w)
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
			if _, err := fmt.Fprintf(q.w, "event: %s\ndata: %s\n\n", event, version); err != nil || flush.Flush() != nil {
				return // the page is closed
			}
			last, told = version, time.Now()
		}
		select {
		case <-ticks.C:
		case <-end.C:
			return
		case <-q.closed:
			return
		case <-q.ctx().Done():
			return
		}
	}
}

// told is another text whenever the figures are others, or whether they can be read.
func (s snapshot) told() string {
	if s.Error != "" {
		return s.version + "-old"
	}
	return s.version
}

// digest tells a snapshot from others. The time that it was read at does not count.
func (s snapshot) digest() string {
	s.Now = time.Time{}
	if s.Outbox != nil {
		report := *s.Outbox
		report.At = time.Time{}
		s.Outbox = &report
	}
	b, err := json.Marshal(s)
	if err != nil {
		return "" // a snapshot can always be written
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}
