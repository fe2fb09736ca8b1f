// Package health implements /healthz and /readyz.
package health

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/internal/database"
	"github.com/millrace-go/millrace/framework/internal/web"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/transport"
)

// The names of the checks, in Health.Require and in the answer of /readyz.
const (
	checkPostgres = "postgres" // the database answers, and takes writes
	checkTables   = "schema"   // its tables are there, and not too old
	Relays        = "relays"   // no shard with events is without a relay
	Backlog       = "backlog"  // no event has waited too long
	checkBroker   = "broker"   // it answers
	checkHandlers = "handlers" // which consumers are paused; always OK, because no restart mends what their handlers need
	checkStarting = "starting" // there only until the service answers requests
	checkStopping = "stopping" // there only while the service stops
)

// optional are the checks that may fail while the service stays ready, unless Health.Require names them. Without the broker, for
// example, the service takes requests, and its outbox keeps their events.
var optional = []string{Backlog, checkBroker, Relays}

// Config configures the checks. The framework's Health documents the fields.
type Config struct {
	MaxBacklogAge, MaxUnrelayed, Timeout time.Duration
	Require                              []string
}

// WithDefaults returns the configuration with every zero field set to its default.
func (cfg Config) WithDefaults() Config {
	cfg.MaxBacklogAge = cmp.Or(cfg.MaxBacklogAge, 5*time.Minute)
	cfg.MaxUnrelayed = cmp.Or(cfg.MaxUnrelayed, 30*time.Second)
	cfg.Timeout = cmp.Or(cfg.Timeout, 2*time.Second)
	return cfg
}

// Validate reports everything that is wrong with the configuration. It expects one that has its defaults.
func (cfg Config) Validate() error {
	var errs []error
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"MaxBacklogAge", cfg.MaxBacklogAge}, {"MaxUnrelayed", cfg.MaxUnrelayed}, {"Timeout", cfg.Timeout}} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("Config.Health.%s is %s: want more than 0, or 0 for the default", d.field, d.value))
		}
	}
	for i, name := range cfg.Require {
		if !slices.Contains(optional, name) {
			errs = append(errs, fmt.Errorf("Config.Health.Require[%d] is %q: want one of %s", i, name, strings.Join(optional, ", ")))
		}
	}
	return errors.Join(errs...)
}

// check is the result of one check.
type check struct {
	Name      string `json:"name"`
	OK        bool   `json:"ok"`
	Tolerated bool   `json:"tolerated,omitempty"` // the check failed, but the service is ready
	Problem   string `json:"problem,omitempty"`   // what is wrong or, if OK, worth knowing
	Error     string `json:"error,omitempty"`     // the cause, for operators only

	cause error // may contain users, databases and hosts
}

// Detail is how much an answer tells about a check.
type Detail int

// The levels of detail.
const (
	Terse   Detail = iota // for everybody, if there is a server for operators
	Reasons               // for everybody, if there is none
	Causes                // for operators
)

// verdict is the answer of /readyz.
type verdict struct {
	Ready  bool    `json:"ready"`
	Checks []check `json:"checks"`
}

// in returns a copy of the verdict with this level of detail.
func (v verdict) in(d Detail) verdict {
	v.Checks = slices.Clone(v.Checks)
	for i := range v.Checks {
		c := &v.Checks[i]
		switch {
		case d == Terse:
			c.Problem = ""
		case d == Causes && c.cause != nil:
			c.Error = c.cause.Error()
		}
	}
	return v
}

const (
	// probeEvery is how long a verdict is reused, so that probes do not load the database.
	probeEvery = time.Second
	// uncountedFor is the pause after counting the outbox timed out, because counting a large outbox loads the server.
	uncountedFor = 30 * time.Second
	// knockEvery is the interval between pings of the broker, which may charge for requests or limit them.
	knockEvery = 5 * time.Second
)

// Service has what the checks examine.
type Service struct {
	Pool      *pgxpool.Pool // nil: there is no database
	Schema    string
	Transport transport.Transport
	Running   <-chan struct{} // closed when the service answers requests
	Stopping  <-chan struct{} // closed when the service takes nothing more
	Paused    func() []claim.Pause
	Log       *slog.Logger
}

// Checker answers the probes. It is safe for concurrent use.
type Checker struct {
	cfg  Config
	of   Service
	pool *pgxpool.Pool // a pool of its own, so that checks do not wait for handlers' connections; nil: no database

	mu            sync.Mutex // held while the checks run; probes that wait for it get the same verdict
	asked, knocks time.Time
	uncounted     time.Time // when counting the outbox last timed out
	last          verdict
	broker        check
	tables        check             // as last known; OK at first, because a service starts with its tables only
	logged        map[string]string // check -> its last logged cause
}

// New returns a Checker for the service. Without a database the broker is always required, because no outbox keeps the events of
// requests.
func New(cfg Config, of Service) (*Checker, error) {
	h := &Checker{cfg: cfg, of: of, tables: check{Name: checkTables, OK: true}, logged: map[string]string{}}
	if of.Pool == nil {
		h.cfg.Require = append(slices.Clone(h.cfg.Require), checkBroker)
		return h, nil
	}
	own := of.Pool.Config()
	own.MaxConns, own.MinConns, own.MinIdleConns = 1, 0, 0
	var err error
	if h.pool, err = pgxpool.NewWithConfig(context.Background(), own); err != nil { // it connects on first use
		return nil, fmt.Errorf("make the pool of the health checks: %w", err)
	}
	return h, nil
}

// Close closes the checks' pool.
func (h *Checker) Close() {
	if h.pool != nil {
		h.pool.Close()
	}
}

// Register adds /healthz and /readyz, with this level of detail.
func (h *Checker) Register(mux *web.Routes, d Detail) {
	mux.HandleOwn("GET "+web.LivePath, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		respond(w, http.StatusOK, map[string]bool{"alive": true})
	}))
	mux.HandleOwn("GET "+web.ReadyPath, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, code := h.verdict(r.Context()), http.StatusOK
		if !v.Ready {
			code = http.StatusServiceUnavailable
		}
		respond(w, code, v.in(d))
	}))
}

func respond(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // an error means that the client has gone
}

// verdict is that of the checks, or that the service starts or stops, also when it begins to stop while they run.
func (h *Checker) verdict(ctx context.Context) verdict {
	if !h.stops() {
		select {
		case <-h.of.Running:
		default: // the server for operators answers already
			return verdict{Checks: []check{{Name: checkStarting, Problem: "the service starts: its handlers subscribe, and it answers no request yet"}}}
		}
		if v := h.check(ctx); !h.stops() {
			return v
		}
	}
	return verdict{Checks: []check{{Name: checkStopping, Problem: "the service stops: send requests elsewhere"}}}
}

func (h *Checker) stops() bool {
	select {
	case <-h.of.Stopping:
		return true
	default:
		return false
	}
}

func (h *Checker) check(ctx context.Context) verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.asked) < probeEvery {
		return h.last
	}
	// Other probes get this verdict too, so it must not fail because this probe's client has gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.cfg.Timeout)
	var knocking, watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { // a load balancer must learn soon that the service stops, even if checks are slow
		select {
		case <-h.of.Stopping:
			cancel()
		case <-ctx.Done():
		}
	})
	knocking.Go(func() { h.knock(ctx) })
	var checks []check
	if h.pool != nil {
		checks = h.database(ctx)
	}
	knocking.Wait()
	if h.stops() { // the checks were cancelled: do not keep their results
		return h.last
	}
	h.last, h.asked = h.cfg.judge(append(checks, h.broker, judgePauses(h.of.Paused(), time.Now()))), time.Now()
	h.logCauses(h.last.Checks)
	return h.last
}

// logCauses logs the cause of each failed check, once for each change.
func (h *Checker) logCauses(checks []check) {
	for _, c := range checks {
		cause := ""
		if c.cause != nil {
			cause = c.cause.Error()
		}
		if cause != "" && cause != h.logged[c.Name] {
			h.of.Log.Warn("a check of /readyz has failed", slog.String("check", c.Name), slog.Any("error", c.cause))
		}
		h.logged[c.Name] = cause
	}
}

// knock pings the broker. The check is OK for a transport without Ping.
func (h *Checker) knock(ctx context.Context) {
	if h.broker.OK && time.Since(h.knocks) < knockEvery {
		return
	}
	h.broker = check{Name: checkBroker, OK: true}
	if p, ok := h.of.Transport.(transport.Pinger); ok {
		if err := p.Ping(ctx); err != nil {
			h.broker = check{Name: checkBroker, Problem: h.of.Transport.Name() + " does not answer: the log has the error", cause: err}
		}
	}
	h.knocks = time.Now()
}

// database runs the checks of the database in order. After a failed one it marks the rest as not known.
func (h *Checker) database(ctx context.Context) []check {
	checks := []check{{Name: checkPostgres, OK: true}, {Name: checkTables, OK: true}}
	unknown := func(why string, cause error) []check {
		for _, name := range []string{checkTables, Relays, Backlog}[len(checks)-1:] {
			checks = append(checks, check{Name: name, Problem: why, cause: cause})
			cause = nil // report the cause only once
		}
		return checks
	}
	var readOnly bool // true on a standby, for example after a failover that the DSN does not follow
	err := h.pool.QueryRow(ctx, "select current_setting('transaction_read_only')::bool", pgx.QueryExecModeSimpleProtocol).Scan(&readOnly)
	switch {
	case err != nil:
		checks = []check{{Name: checkPostgres, Problem: "PostgreSQL does not answer: the log has the error", cause: err}}
		return unknown("not known, as PostgreSQL does not answer", nil)
	case readOnly:
		checks[0] = check{Name: checkPostgres, Problem: "PostgreSQL takes no writes: see that Config.Postgres.DSN (postgres.dsn) names the primary server, and that it is not read-only"}
	}
	switch err := database.Check(ctx, h.pool, h.of.Schema); {
	case err == nil:
		h.tables = check{Name: checkTables, OK: true}
	case ctx.Err() != nil: // a server that is slow says nothing about the tables, and a load balancer must not lose all instances for it
	default:
		h.tables = check{Name: checkTables, Problem: "the tables are missing, or of another version, or could not be read: \"millrace migrate status\" and the log say what is wrong", cause: err}
	}
	if checks[1] = h.tables; !h.tables.OK {
		return unknown("not known without the tables", nil)
	}
	var report *outboxadmin.Report
	err = outboxadmin.ErrNotCounted
	if time.Since(h.uncounted) > uncountedFor {
		report, err = outboxadmin.InspectBacklog(ctx, h.pool, h.of.Schema)
	}
	switch {
	case errors.Is(err, outboxadmin.ErrNotCounted): // no reason to make a service unready, least of all every instance during a backup
		if time.Since(h.uncounted) > uncountedFor {
			h.uncounted = time.Now()
		}
		for _, name := range []string{Relays, Backlog} {
			checks = append(checks, check{Name: name, OK: true, Problem: "not known: " + outboxadmin.ErrNotCounted.Error()})
		}
		return checks
	case err != nil:
		return unknown("the outbox cannot be read: the log has the error", err)
	}
	return append(checks, h.cfg.judgeOutbox(report)...)
}
