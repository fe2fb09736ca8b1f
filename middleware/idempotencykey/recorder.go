package idempotencykey

import (
	"fmt"
	"net/http"
	"strings"
)

// recorder is the handler's http.ResponseWriter. It keeps the response until the transaction has committed, so it supports neither
// Flush nor Hijack: an http.ResponseController returns http.ErrNotSupported.
type recorder struct {
	before, header http.Header
	limit          int64

	status  int         // 0 until the header is written
	written http.Header // header at that time
	body    []byte
	refused error // why the response cannot be stored
}

func newRecorder(outer http.Header, limit int64) *recorder {
	return &recorder{before: outer.Clone(), header: outer.Clone(), limit: limit, body: []byte{}}
}

func (r *recorder) Header() http.Header { return r.header }

// WriteHeader drops informational responses; a client must work without them.
func (r *recorder) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %d", status)) // as net/http does, but before the commit
	}
	if r.status != 0 || status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	r.status, r.written = status, r.header.Clone()
	switch {
	case status == http.StatusSwitchingProtocols:
		r.refuse("a switch of protocols")
	case strings.HasPrefix(strings.ToLower(r.header.Get("Content-Type")), "text/event-stream"):
		r.refuse("a stream of events")
	case len(r.header["Trailer"]) > 0:
		r.refuse("a response with trailers")
	}
}

// refuse makes the handler's next Write fail, so that a streaming handler ends.
func (r *recorder) refuse(what string) {
	r.refused = fmt.Errorf("%s cannot be stored and repeated: keep this handler out of the middleware: %w", what, http.ErrNotSupported)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if r.refused == nil && int64(len(r.body)+len(b)) > r.limit {
		r.refused = fmt.Errorf("the response is larger than %d bytes: raise Config.MaxResponse, or keep this handler out of the middleware", r.limit)
	}
	switch {
	case r.refused != nil:
		return 0, r.refused
	case !hasBody(r.status):
		return 0, http.ErrBodyNotAllowed
	}
	r.body = append(r.body, b...)
	return len(b), nil
}

// answer returns the handler's response. It is called when the handler has returned.
func (r *recorder) answer() (*answer, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	for name := range r.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			r.refuse("a response with trailers")
		}
	}
	if r.refused != nil {
		return nil, misuse{r.refused}
	}
	return &answer{status: r.status, header: changes(r.before, r.written), body: r.body}, nil
}
