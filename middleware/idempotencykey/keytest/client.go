package keytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// call is a request.
type call struct {
	method  string   // default: POST
	suffix  string   // of the path
	keys    []string // values of the header
	body    string
	account string // default: alice
}

// reply is a complete response.
type reply struct {
	status int
	header http.Header
	body   string
}

func (r reply) String() string {
	body := r.body
	if len(body) > 60 {
		body = body[:60] + "..."
	}
	return fmt.Sprintf("%d %q", r.status, body)
}

// key returns a new key in the form that the server expects in the header.
func (p *probe) key() string { return p.written(uuid.NewString()) }

func (p *probe) written(key string) string {
	if p.server.Keys == Opaque {
		return key
	}
	return `"` + key + `"`
}

// post sends a request with the key and the usual body.
func (p *probe) post(key string) (reply, error) {
	return p.send(p.ctx, call{keys: []string{key}, body: "amount=7"})
}

func (p *probe) send(ctx context.Context, c call) (reply, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.patience, fmt.Errorf("the server did not answer within %v", p.patience))
	defer cancel()
	r, err := p.request(ctx, c)
	if err != nil {
		return reply{}, err
	}
	res, err := p.client.Do(r)
	if err != nil {
		return reply{}, errors.Join(err, context.Cause(ctx))
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(body)}, err
}

func (p *probe) request(ctx context.Context, c call) (*http.Request, error) {
	if c.method == "" {
		c.method = http.MethodPost
	}
	var body io.Reader = http.NoBody
	if c.body != "" {
		body = strings.NewReader(c.body)
	}
	r, err := http.NewRequestWithContext(ctx, c.method, p.url+p.path+c.suffix, body)
	if err != nil {
		return nil, err
	}
	r.Header["Idempotency-Key"] = c.keys
	if c.body != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if c.account == "" {
		c.account = "alice"
	}
	if p.server.Authenticate != nil {
		p.server.Authenticate(r, c.account)
	}
	return r, nil
}

// postAside sends a request in the background.
func (p *probe) postAside(ctx context.Context, key string) <-chan sent {
	ended := make(chan sent, 1)
	go func() {
		r, err := p.send(ctx, call{keys: []string{key}, body: "amount=7"})
		ended <- sent{r, err}
	}()
	return ended
}

type sent struct {
	reply
	err error
}

// hold sends a request whose operation blocks until release is called, and waits until it is executed.
func (p *probe) hold(ctx context.Context, key string) (ended <-chan sent, release func(), err error) {
	release = p.block()
	ended = p.postAside(ctx, key)
	return ended, release, p.executing(ended)
}

// executing waits for one more execution of the operation.
func (p *probe) executing(ended <-chan sent) error {
	select {
	case <-p.began:
		return nil
	case s := <-ended:
		return errors.Join(fmt.Errorf("the first request got %v: want it to be executed", s.reply), s.err)
	case <-time.After(p.patience):
		return fmt.Errorf("the operation was not executed within %v", p.patience)
	}
}

// accepted asserts that the request was executed, as execution number run of the case.
func (p *probe) accepted(what string, r reply, err error, status int, run int64) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if got := r.header.Get("X-Keytest-Run"); r.status != status || got != fmt.Sprint(run) {
		return fmt.Errorf("%s got %v of execution %q: want %d of execution %d", what, r, got, status, run)
	}
	return p.executed(what, run)
}

// executed asserts the number of executions.
func (p *probe) executed(what string, runs int64) error {
	if n := p.runs.Load(); n != runs {
		return fmt.Errorf("after %s the operation was executed %d times: want %d", what, n, runs)
	}
	return nil
}

// refused asserts that the request was refused with the status and was not executed.
func (p *probe) refused(what string, r reply, err error, status int, runs int64) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := p.executed(what, runs); err != nil {
		return err
	}
	if r.status != status {
		return fmt.Errorf("%s got %v: want %d", what, r, status)
	}
	return nil
}

// same asserts that a response equals the first one.
func same(what string, first, got reply) error {
	if got.status != first.status {
		return fmt.Errorf("%s got status %d: want that of the first response, %d", what, got.status, first.status)
	}
	if got.body != first.body {
		return fmt.Errorf("%s got the body %.60q: want that of the first response, %.60q", what, got.body, first.body)
	}
	for _, name := range theirs {
		if !slices.Equal(first.header.Values(name), got.header.Values(name)) {
			return fmt.Errorf("%s got %s: %q, want that of the first response, %q", what, name, got.header.Values(name), first.header.Values(name))
		}
	}
	return nil
}
