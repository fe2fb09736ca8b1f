package millracetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/transport"
)

var (
	errDead    = errors.New("millracetest: the process is dead")
	errRefused = errors.New("millracetest: the provider was chosen to refuse this call")
	errLost    = errors.New("millracetest: the provider's answer was chosen to be lost")
)

// call is an effect outside of the database.
type call struct {
	what   string
	key    string // its idempotency key; "" for none
	line   string
	ledger bool   // it was made through the effect ledger
	intent string // the key of the ledger's effect
	again  bool   // the provider has seen its key before: it has no effect
}

// recorder is the outside world of one run of the handler, in all its processes.
type recorder struct {
	mu    sync.Mutex
	calls []call
	// answers are what the provider has answered, by idempotency key.
	answers map[string]*httptest.ResponseRecorder
}

// effects counts what has happened, by what it was.
func (r *recorder) effects() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := map[string]int{}
	for _, c := range r.calls {
		if !c.again {
			n[c.what]++
		}
	}
	return n
}

// last returns the last call of that kind.
func (r *recorder) last(what string) (call, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range slices.Backward(r.calls) {
		if c.what == what {
			return c, true
		}
	}
	return call{}, false
}

// happened reports whether the effect of the ledger's key has had its call.
func (r *recorder) happened(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.calls, func(c call) bool { return c.ledger && c.intent == key })
}

// Effect records an effect outside of the database that is no HTTP request, such as a call of a provider's client that a test
// replaces by a fake. The fake calls it in the place of the effect, on the handler's goroutine, and returns its error. what names
// the effect and its arguments. A provider that honours idempotency keys makes one effect of all calls with the same key; an empty
// key is none.
func (p *Process) Effect(what, key string) error {
	_, err := p.call(what, key, nil)
	return err
}

// Happened reports whether an effect has happened, as Effect was told it, or as a request: "POST https://sms.example/messages" and,
// behind a space, the body. A fake answers with it when a handler asks what became of a call.
func (p *Process) Happened(what string) bool {
	_, ok := p.world.last(what)
	return ok
}

// call makes the call at the provider, unless a fault comes first.
func (p *Process) call(what, key string, provide func() *httptest.ResponseRecorder) (*httptest.ResponseRecorder, error) {
	c := call{what: what, key: key}
	c.line, c.ledger = here()
	if p.proxy.isDead() {
		return nil, errDead
	}
	p.proxy.mu.Lock()
	if c.ledger && len(p.proxy.intent) > 0 {
		c.intent = p.proxy.intent[0]
	}
	p.calls++
	f, struck := p.proxy.fault, false
	if f.call == p.calls && !p.proxy.struck {
		p.proxy.struck, struck = true, true
	}
	p.proxy.mu.Unlock()
	if struck && f.kind == refuses {
		return nil, errRefused
	}
	r := p.world
	r.mu.Lock()
	defer r.mu.Unlock()
	var answer *httptest.ResponseRecorder
	if key != "" {
		c.again = slices.ContainsFunc(r.calls, func(o call) bool { return o.key == key && o.what == what })
		answer = r.answers[key+" "+what]
	}
	if answer == nil && provide != nil {
		answer = provide()
		r.answers[key+" "+what] = answer
	}
	r.calls = append(r.calls, c)
	if struck { // its kind is answerLost
		return nil, errLost
	}
	return answer, nil
}

// providers is the http.RoundTripper of Process.HTTP.
type providers struct{ p *Process }

// RoundTrip records the request, and has the handler of Provider answer it. It leaves the machine in no case.
func (t providers) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		read, err := io.ReadAll(r.Body)
		if err = errors.Join(err, r.Body.Close()); err != nil {
			return nil, err
		}
		body = read
	}
	what := strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Method, r.URL, body))
	provide := func() *httptest.ResponseRecorder {
		answer := httptest.NewRecorder()
		asked := r.Clone(r.Context())
		asked.RequestURI, asked.Body = r.URL.RequestURI(), io.NopCloser(bytes.NewReader(body))
		t.p.attack.options.provider.ServeHTTP(answer, asked)
		return answer
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead { // a question is no effect
		if t.p.proxy.isDead() {
			return nil, errDead
		}
		return provide().Result(), nil
	}
	answer, err := t.p.call(what, r.Header.Get("Idempotency-Key"), provide)
	if err != nil {
		return nil, err
	}
	copied := *answer
	copied.Body = bytes.NewBuffer(slices.Clone(answer.Body.Bytes()))
	return copied.Result(), nil
}

// driver makes the broker of a process: what the handler publishes to it directly is an effect.
func (p *Process) driver() transport.Driver {
	return transport.Driver{Name: "memory", Settings: func() transport.Settings {
		return &brokerSettings{transport.MemoryDriver.Settings(), p}
	}}
}

type brokerSettings struct {
	memory transport.Settings
	p      *Process
}

func (s *brokerSettings) WithDefaults(env transport.Environment) transport.Settings {
	return &brokerSettings{s.memory.WithDefaults(env), s.p}
}
func (s *brokerSettings) Validate() error          { return s.memory.Validate() }
func (s *brokerSettings) Limits() transport.Limits { return s.memory.Limits() }

func (s *brokerSettings) Open(ctx context.Context, env transport.Environment) (transport.Transport, error) {
	t, err := s.memory.Open(ctx, env)
	return broker{t, s.p}, err
}

type broker struct {
	transport.Transport
	p *Process
}

func (b broker) Publisher() (message.Publisher, error) { return publisher{b.p}, nil }

type publisher struct{ p *Process }

func (b publisher) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		if err := b.p.Effect(fmt.Sprintf("the event on %s, published past the outbox: %s", topic, msg.Payload), ""); err != nil {
			return err
		}
	}
	return nil
}

func (publisher) Close() error { return nil }
