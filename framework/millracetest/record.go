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
	"github.com/millrace-go/millrace/transport/memory"
)

var (
	errDead    = errors.New("millracetest: the process is dead")
	errRefused = errors.New("millracetest: the provider was chosen to refuse this call")
	errLost    = errors.New("millracetest: the provider's answer was chosen to be lost")
)

// call is an effect outside of the database.
type call struct {
	what   string
	key    string // the idempotency key; "" for none
	line   string
	ledger bool   // made through the effect ledger
	intent string // the key of the ledger's effect
	again  bool   // the provider has seen the idempotency key before, so this call has no effect
}

// recorder records the calls of providers in one run of the handler, from all its processes.
type recorder struct {
	mu    sync.Mutex
	calls []call
	// answers maps idempotency key and call to the provider's answer.
	answers map[string]*httptest.ResponseRecorder
}

// effects counts the effects by name and arguments.
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

// last returns the last call with that name and arguments.
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

// happened reports whether a call was made for the ledger's effect with this key.
func (r *recorder) happened(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.calls, func(c call) bool { return c.ledger && c.intent == key })
}

// Effect records an effect outside of the database that is not an HTTP request, such as a call of a provider's client. In the
// test a fake replaces the client. The fake calls Effect instead of having the effect, on the handler's goroutine, and returns
// its error. what names the effect and its arguments. Calls with the same idempotency key are one effect, as with a provider that
// honours such keys; an empty key is none.
func (p *Process) Effect(what, key string) error {
	_, err := p.call(what, key, nil)
	return err
}

// Happened reports whether an effect has happened. what is the argument of Effect, or an HTTP request: "POST
// https://sms.example/messages" and, after a space, the body. A fake can use it to answer a handler that asks for the result of a
// call.
func (p *Process) Happened(what string) bool {
	_, ok := p.world.last(what)
	return ok
}

// call makes the call of the provider, unless a fault prevents it.
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
	if struck { // the fault is answerLost
		return nil, errLost
	}
	return answer, nil
}

// providers is the http.RoundTripper of Process.HTTP.
type providers struct{ p *Process }

// RoundTrip records the request, and passes it to the handler of Provider. No request leaves the machine.
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
	if r.Method == http.MethodGet || r.Method == http.MethodHead { // a read is no effect
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

// driver returns the broker of a process. An event that the handler publishes to the broker directly counts as an effect.
func (p *Process) driver() transport.Driver {
	return transport.Driver{Name: "memory", Settings: func() transport.Settings {
		return &brokerSettings{memory.Driver.Settings(), p}
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
