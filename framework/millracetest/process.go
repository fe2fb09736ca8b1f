package millracetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgconn"
	"go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/transport"
)

const (
	schema = "millrace"
	// patience bounds the time of each step, on a machine under load.
	patience = time.Minute
)

// Process is one process of the attacked service: a service of package framework, which handles the event until a fault kills it.
// The function given to Run sets it up. All methods may be called concurrently.
type Process struct {
	// Service has the handler. Its pool, outbox and ledger are the production ones, on the test's database.
	Service *framework.Service
	// HTTP is the client for the handler's providers. Its requests do not leave the test: see Provider. Each request except GET and
	// HEAD is an effect. Requests with the same Idempotency-Key header and content are one effect.
	HTTP *http.Client

	attack *attack
	world  *recorder
	proxy  *proxy
	intake *intake
	errors *errorLog
	calls  int // guarded by proxy.mu
	routed chan error

	mu        sync.Mutex
	goroutine string // the goroutine that runs the handler; "" if none does
	err       error  // the last error of the handler
}

// assembled is a process without handlers.
type assembled struct {
	p   *Process
	err error
}

// start returns a process that suffers the fault, and begins to assemble the next one.
func (a *attack) start(ctx context.Context, f fault) (*Process, error) {
	if a.spare == nil {
		a.spare = make(chan assembled, 1)
		a.spare <- a.assemble(ctx)
	}
	next := <-a.spare
	go func() { a.spare <- a.assemble(ctx) }()
	if next.p != nil {
		a.processes = append(a.processes, next.p)
	}
	if next.err != nil {
		return nil, next.err
	}
	return next.p, next.p.run(ctx, f)
}

// assemble makes a process that has only the service.
func (a *attack) assemble(ctx context.Context) assembled {
	p := &Process{attack: a, intake: &intake{messages: make(chan *message.Message)}, errors: &errorLog{}, routed: make(chan error, 1)}
	p.HTTP = &http.Client{Transport: providers{p}}
	pg := a.admin.Config().ConnConfig
	network, server := pgconn.NetworkAddress(pg.Host, pg.Port)
	var err error
	if p.proxy, err = newProxy(network, server); err != nil {
		return assembled{nil, err}
	}
	cfg := framework.Config{
		Service: "attacked", Broker: "memory", Drivers: []transport.Driver{p.driver()},
		HTTP:      framework.HTTP{Address: "127.0.0.1:0"},
		Postgres:  framework.Postgres{DSN: p.dsn(&pg.Config), Schema: schema},
		Log:       framework.Log{Handler: slog.NewTextHandler(p.errors, &slog.HandlerOptions{Level: slog.LevelError})},
		Telemetry: framework.Telemetry{TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: noop.NewMeterProvider()},
	}
	cfg.Claim.Backoff = func(int) time.Duration { return time.Millisecond }
	cfg.Effects.RetryAfter, cfg.Effects.Settle = time.Millisecond, time.Millisecond
	cfg.ShutdownTimeout = 10 * time.Second
	for _, change := range a.options.config {
		change(&cfg)
	}
	if p.Service, err = framework.New(ctx, cfg); err != nil {
		return assembled{p, fmt.Errorf("start the service: %w", err)}
	}
	return assembled{p, nil}
}

// run adds the handler, and begins to take events.
func (p *Process) run(ctx context.Context, f fault) error {
	a := p.attack
	p.world = a.world
	if err := a.setup(p); err != nil {
		return fmt.Errorf("set up the service: %w", err)
	}
	p.Service.Router().AddMiddleware(p.observe)
	var names []string
	err := p.Service.Attach(func(name string) message.Subscriber {
		names = append(names, name)
		if name == a.options.handler || a.options.handler == "" {
			return p.intake
		}
		return &intake{messages: make(chan *message.Message)}
	})
	switch {
	case err != nil:
		return err
	case len(names) == 0:
		return errors.New("the function given to Run has added no handler: add one to Process.Service with framework.Handle")
	case len(names) > 1 && a.options.handler == "":
		return fmt.Errorf("the function given to Run has added the handlers %q: name the one to attack with the option Handler", names)
	}
	router := p.Service.Router()
	go func() { p.routed <- router.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-router.Running():
	case err := <-p.routed:
		p.routed <- err
		return fmt.Errorf("run the router: %w", err)
	}
	var line func() string
	if f.kind == nothing {
		line = p.line
	}
	p.proxy.arm(f, line)
	return nil
}

// dsn returns a DSN that connects through the proxy.
func (p *Process) dsn(server *pgconn.Config) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(server.User, server.Password), Path: "/" + server.Database,
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(p.proxy.port())),
	}
	query := url.Values{"sslmode": {"disable"}}
	for name, value := range server.RuntimeParams {
		query.Set(name, value)
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// observe is the middleware around the handler, inside the claim.
func (p *Process) observe(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		p.handling(goroutine(), nil)
		produced, err := h(msg)
		p.handling("", err)
		return produced, err
	}
}

func (p *Process) handling(goroutine string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.goroutine, p.err = goroutine, err
}

// line returns the line where the handler waits for PostgreSQL.
func (p *Process) line() string {
	p.mu.Lock()
	id := p.goroutine
	p.mu.Unlock()
	if id == "" {
		return ""
	}
	return waiting(id)
}

// deliver delivers the event to the handler. It returns when the event is acked or nacked, or the process has died.
func (p *Process) deliver(attempt int) (acked bool, err error) {
	msg := p.attack.event.Copy()
	msg.SetContext(transport.WithDelivery(context.Background(), &delivery{attempt: attempt}))
	timeout := time.After(patience)
	for messages := p.intake.messages; ; {
		select {
		case messages <- msg:
			messages = nil
		case <-msg.Acked():
			return !p.proxy.isDead(), nil
		case <-msg.Nacked():
			return false, nil
		case <-p.proxy.died:
			return false, nil
		case <-timeout:
			return false, fmt.Errorf("the handler has not returned within %v", patience)
		}
	}
}

// failure returns why the last delivery was nacked.
func (p *Process) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	return errors.New("the claim did not commit: " + p.errors.String())
}

// end kills the process, and waits for its goroutines.
func (p *Process) end() error {
	if p.Service == nil {
		p.proxy.close()
		return nil
	}
	p.proxy.kill()
	p.proxy.resume()
	var err error
	if router := p.Service.Router(); router.IsRunning() {
		err = router.Close()
		select {
		case ran := <-p.routed:
			err = errors.Join(err, ran)
		case <-time.After(patience):
			err = errors.Join(err, errors.New("the router has not ended"))
		}
	}
	err = errors.Join(err, p.Service.Close())
	p.proxy.close()
	return err
}

// intake is the subscriber through which a test delivers.
type intake struct {
	messages chan *message.Message
	closing  sync.Once
}

func (i *intake) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return i.messages, nil
}

func (i *intake) Close() error {
	i.closing.Do(func() { close(i.messages) })
	return nil
}

// delivery is a delivery without a delay before the next one.
type delivery struct {
	transport.Rejection
	attempt int
}

func (d *delivery) Attempt() int           { return d.attempt }
func (*delivery) RetryAfter(time.Duration) {}
func (*delivery) Handled()                 {}

// errorLog stores the errors that the service logs.
type errorLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *errorLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *errorLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
