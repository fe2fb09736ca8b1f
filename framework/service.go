package framework

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/internal/cloud"
	"github.com/millrace-go/millrace/framework/internal/health"
	"github.com/millrace-go/millrace/framework/internal/telemetry"
	"github.com/millrace-go/millrace/framework/internal/web"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/schedule"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// Service connects a database, a broker, and the handlers of events and requests. Make it with New, add handlers, and call Run
// once. All methods may be called concurrently, but handlers must be added before Run.
type Service struct {
	cfg       Config
	log       *slog.Logger
	telemetry telemetry.Providers
	health    *health.Checker
	listener  net.Listener
	mux       *web.Routes
	server    *http.Server
	admin     *web.Operators // nil: no server for operators
	bare      bool           // the service has no database
	pool      *pgxpool.Pool  // without a database: a pool that never gets a connection
	transport transport.Transport
	router    *message.Router
	outbox    *outbox.Publisher
	claim     *claim.Claim
	ordered   *claim.Claim // for handlers that are Ordered; nil if there are none
	effects   *effect.Ledger
	closing   sync.Once
	closed    error

	mu        sync.Mutex
	stage     stage
	handlers  []*handler
	schedules []schedule.Event
	published []Published
	keys      *idempotencykey.Keys // the first one that Keys made; nil: none
	running   chan struct{}        // closed when all handlers are subscribed
	stopping  chan struct{}        // closed when the service takes no more messages and requests
}

// stage is a stage of a service's life.
type stage int

const (
	made stage = iota
	started
	ended
)

// Open makes a service from a configuration file and MILLRACE_* environment variables: Load and New in one.
func Open(ctx context.Context, path string, drivers ...transport.Driver) (*Service, error) {
	cfg, err := Load(path, drivers...)
	if err != nil {
		return nil, err
	}
	return New(ctx, cfg)
}

// New connects to the database and to the broker that cfg names, and listens on the HTTP address. cfg.Drivers must have the
// broker's driver. If the address is in use, the database or the broker does not answer, or tables are missing or too old, New
// returns an error within 5 s that says what to do. With Postgres.Migrate it takes as long as the migration.
//
// Run the service, or close it.
func New(ctx context.Context, cfg Config) (*Service, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if _, _, err := cfg.Settings(); err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, bare: cfg.Postgres.Disabled, log: telemetry.Logger(os.Stderr, cfg.Service, telemetry.Log(cfg.Log)), mux: web.NewRoutes(), running: make(chan struct{}), stopping: make(chan struct{})}
	if err := s.assemble(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// assemble makes the parts. If it fails, Close closes the parts that it has made.
func (s *Service) assemble(ctx context.Context) (err error) {
	connecting, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if s.telemetry, err = telemetry.New(ctx, s.cfg.Service, telemetry.Config(s.cfg.Telemetry)); err != nil {
		return err
	}
	if s.listener, err = web.Listen(connecting, "Config.HTTP.Address (http.address)", s.cfg.HTTP.Address); err != nil {
		return err
	}
	if s.server, err = web.NewServer(s.cfg.HTTP.web(), "HTTP", "http", s.log); err != nil {
		return err
	}
	if err = s.openDatabase(ctx, connecting); err != nil {
		return err
	}
	if s.cfg.Postgres.Migrate { // the migration may have used up the time
		connecting, cancel = context.WithTimeout(ctx, connectTimeout)
		defer cancel()
	}
	if s.transport, err = s.open(connecting); err != nil {
		return err
	}
	s.mountPush()
	checked := health.Service{Schema: s.cfg.Postgres.Schema, Transport: s.transport, Running: s.running, Stopping: s.stopping, Paused: s.paused, Log: s.log}
	if !s.bare {
		checked.Pool = s.pool
	}
	if s.health, err = health.New(health.Config(s.cfg.Health), checked); err != nil {
		return err
	}
	if s.cfg.Admin.Address != "" {
		if s.admin, err = s.newAdmin(connecting); err != nil {
			return err
		}
	}
	if err = s.observe(); err != nil {
		return err
	}
	encode := s.encode
	if s.bare { // no relay would forward an event that another pool's transaction writes
		encode = func(string, *message.Message) error { return ErrNoPostgres }
	}
	s.outbox, err = outbox.NewPublisher(outbox.PublisherConfig{
		Schema: s.cfg.Postgres.Schema, Limits: s.transport.Features().Limits, MaxBacklog: s.cfg.Outbox.MaxBacklog, Encode: encode,
		Propagator: s.telemetry.Propagator, Store: s.cfg.Outbox.Store,
	})
	if err != nil {
		return err
	}
	if s.claim, err = s.newClaim(false); err != nil {
		return err
	}
	if s.effects, err = s.newLedger(connecting); err != nil {
		return err
	}
	// At level info the router logs only that handlers start and stop.
	quiet := watermill.NewSlogLoggerWithLevelMapping(s.log, map[slog.Level]slog.Level{slog.LevelInfo: slog.LevelDebug})
	s.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: s.cfg.grace()}, quiet)
	if err != nil {
		return fmt.Errorf("make the router: %w", err)
	}
	s.addMiddleware()
	return nil
}

// mountPush adds the routes for brokers that push messages to the service.
func (s *Service) mountPush() {
	if server, ok := s.transport.(transport.PushServer); ok {
		for _, path := range server.PushPaths() {
			s.mux.HandleOwn("POST "+path+"/{subscription}", server.PushHandler())
		}
	}
}

func (s *Service) newClaim(ordered bool) (*claim.Claim, error) {
	cfg := s.cfg.Claim.of(s.cfg.Service)
	cfg.Ordered = ordered
	if cfg.EventID == nil {
		cfg.EventID = cloud.EventID
	}
	cfg.Handlers = maps.Clone(cfg.Handlers)
	for name, h := range s.cfg.Handlers {
		if cfg.Handlers == nil {
			cfg.Handlers = map[string]claim.HandlerConfig{}
		}
		cfg.Handlers[s.cfg.consumer(name)] = h.claimConfig()
	}
	cfg.Logger = cmp.Or(cfg.Logger, s.log)
	cfg.MeterProvider = cmp.Or(cfg.MeterProvider, s.telemetry.Meter)
	cfg.TracerProvider = cmp.Or(cfg.TracerProvider, s.telemetry.Tracer)
	cfg.Propagator = cmp.Or(cfg.Propagator, s.telemetry.Propagator)
	return claim.New(claim.NewPostgresStore(s.pool, claim.Schema(s.cfg.Postgres.Schema)), cfg)
}

// paused returns the consumers that are paused in this process. The health checks call it while requests are answered, when the
// claims exist.
func (s *Service) paused() []claim.Pause {
	all := s.claim.Paused()
	if s.ordered != nil {
		all = append(all, s.ordered.Paused()...)
	}
	return all
}

// HTTP returns the mux of the service's HTTP server. Add routes before Run. The contexts of requests carry the service, so
// Publish works in them.
func (s *Service) HTTP() *http.ServeMux { return s.mux.ServeMux }

// Address returns the host:port on which the service listens. You need it if the configuration has port 0.
func (s *Service) Address() string { return s.listener.Addr().String() }

// AdminAddress returns the host:port of the server for operators, "" without Config.Admin.Address.
func (s *Service) AdminAddress() string { return s.admin.Address() }

// Pool is the pool of connections to the database. It is closed with the service. Without a database (Config.Postgres.Disabled) each use
// of it returns ErrNoPostgres.
func (s *Service) Pool() *pgxpool.Pool { return s.pool }

// Transport is the connection to the broker. It is closed with the service.
func (s *Service) Transport() transport.Transport { return s.transport }

// Router returns Watermill's router. Handlers that you add to it directly have the service's middleware, including the
// claim. Wrap their subscribers by Claim().Subscriber(name, sub), with the handler's name. Middleware that you add runs
// after the service's, in the claim's transaction.
func (s *Service) Router() *message.Router { return s.router }

// Outbox returns the publisher that topics use. Use it to delay or cancel events, or to add metadata: see TopicOf.Message. It
// publishes in the transaction of the message's context. Without a database (Config.Postgres.Disabled) it refuses all events.
func (s *Service) Outbox() *outbox.Publisher { return s.outbox }

// Claim returns the claim of the handlers that are not Ordered. The service has put it around every handler of Router. For
// a handler that you add to Router yourself, use only its Subscriber. Do not add Claim().Middleware to such a handler, nor
// OnHandle: Claim().OnEvent to a CQRS processor on Router: a second claim fails with claim.ErrNestedClaim. Middleware and
// OnEvent are for a router of your own, which has no claim.
func (s *Service) Claim() *claim.Claim { return s.claim }

// Running returns a channel that is closed when Run has subscribed every handler and answers requests.
func (s *Service) Running() <-chan struct{} { return s.running }

// Tx runs fn in a transaction, as pgtx.Run does, with a context in which Publish works. Use it in code that neither a
// request nor a handler has called. In a handler fn joins the handler's transaction.
func (s *Service) Tx(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error, opts ...pgtx.Option) error {
	return pgtx.Run(withService(ctx, s), s.pool, fn, opts...)
}
