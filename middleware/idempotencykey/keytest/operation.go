package keytest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// suite is a run of the suite.
type suite struct {
	server   Server
	url      string
	client   *http.Client
	patience time.Duration
	probes   sync.Map // by ID; a request of an earlier case may still be running
}

const prefix = "/keytest/"

// probe is one case's operation, and the client that calls it. By default the operation answers 201, with the number of the
// execution in headers and body. answer replaces that.
type probe struct {
	*suite
	ctx    context.Context //nolint:containedctx // of one test
	path   string
	answer func(w http.ResponseWriter, r *http.Request, run int64)

	runs     atomic.Int64
	began    chan struct{} // gets one value for each execution
	gate     chan struct{} // an execution waits until it is closed
	open     func()
	hungUp   chan struct{} // closed when the server notices that a client has left
	notice   func()
	mu       sync.Mutex
	received []string // bodies
}

// begin creates the operation of a case. The operation does not block.
func (x *suite) begin(ctx context.Context) *probe {
	id := uuid.NewString()
	p := &probe{suite: x, ctx: ctx, path: prefix + id, began: make(chan struct{}, 1000), gate: make(chan struct{}), hungUp: make(chan struct{})}
	p.open = sync.OnceFunc(func() { close(p.gate) })
	p.notice = sync.OnceFunc(func() { close(p.hungUp) })
	p.open()
	x.probes.Store(id, p)
	return p
}

// block makes executions wait until release is called.
func (p *probe) block() (release func()) {
	p.gate = make(chan struct{})
	p.open = sync.OnceFunc(func() { close(p.gate) })
	return p.open
}

func (x *suite) releaseAll() {
	x.probes.Range(func(_, p any) bool {
		p.(*probe).open()
		return true
	})
}

// of returns the case of a request, or nil. A server may add a prefix to the path, or remove one.
func (x *suite) of(r *http.Request) *probe {
	_, rest, _ := strings.Cut(r.URL.Path, prefix)
	id, _, _ := strings.Cut(rest, "/")
	if p, ok := x.probes.Load(id); ok {
		return p.(*probe)
	}
	return nil
}

// operate is the handler behind the middleware.
func (x *suite) operate(w http.ResponseWriter, r *http.Request) {
	p := x.of(r)
	if p == nil {
		http.Error(w, "keytest: the path "+r.URL.Path+" is not of a case: hand requests to the operation with their path", http.StatusNotFound)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "keytest: the body cannot be read: "+err.Error(), http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	p.received = append(p.received, string(body))
	p.mu.Unlock()
	run := p.runs.Add(1)
	p.began <- struct{}{}
	<-p.gate
	if p.answer != nil {
		p.answer(w, r, run)
		return
	}
	respond(w, http.StatusCreated, run)
}

// theirs are the headers of an operation's response that a replay must repeat.
var theirs = []string{"Content-Type", "Location", "Link", "X-Keytest-Run"}

// respond answers with values that differ for each execution. The body has every possible byte.
func respond(w http.ResponseWriter, status int, run int64) {
	h := w.Header()
	h.Set("Content-Type", "application/vnd.keytest")
	h.Set("Location", fmt.Sprintf("/keytest/results/%d", run))
	h.Add("Link", "</first>; rel=\"first\"")
	h.Add("Link", "</last>; rel=\"last\"")
	h.Set("X-Keytest-Run", fmt.Sprint(run))
	w.WriteHeader(status)
	if status == http.StatusNoContent {
		return
	}
	body := fmt.Appendf(nil, "run %d ", run)
	for b := range 256 {
		body = append(body, byte(b))
	}
	_, _ = w.Write(body)
}

// watched notices outside of the middleware when a client leaves.
func (x *suite) watched(server http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := x.of(r); p != nil {
			defer context.AfterFunc(r.Context(), p.notice)()
		}
		server.ServeHTTP(w, r)
	})
}
