package framework

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

	"github.com/millrace-go/millrace/framework/internal/web"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/transport"
)

// The checks of /readyz, as Health.Require and its answer call them.
const (
	checkPostgres = "postgres" // the database answers, and takes writes
	checkTables   = "schema"   // its tables are there, and not too old
	checkRelays   = "relays"   // no shard with events is without a relay
	checkBacklog  = "backlog"  // no event has waited too long
	checkBroker   = "broker"   // it answers
	checkHandlers = "handlers" // which consumers are paused; always OK, because no restart mends what their handlers need
	checkStopping = "stopping" // there only while the service stops
)

// optional are the checks that leave the service ready, unless Health.Require names them: without the broker it takes requests,
// and its outbox keeps their events.
var optional = []string{checkBacklog, checkBroker, checkRelays}

// Health configures /readyz, which says whether the service can take requests: 200 or 503, and why as JSON. /healthz says
// only that the process answers; restart it by that one, because no restart mends a database or a broker.
type Health struct {
	// MaxBacklogAge is how old an event in the outbox may become before the check backlog fails. Default: 5 min.
	MaxBacklogAge time.Duration
	// MaxUnrelayed is how long events of a shard may wait while no relay holds it, before the check relays fails. Default: 30 s.
	MaxUnrelayed time.Duration
	// Timeout bounds the checks of database and broker. Default: 2 s.
	Timeout time.Duration
	// Require names checks without which the service is not ready, beside postgres and schema: backlog, broker or relays.
	// The others are reported all the same. Without them a service takes requests while the broker is down, and its outbox keeps
	// their events. Default: none.
	Require []string
}

// WithDefaults returns the configuration with every zero field set to its default.
func (h Health) WithDefaults() Health {
	h.MaxBacklogAge = cmp.Or(h.MaxBacklogAge, 5*time.Minute)
	h.MaxUnrelayed = cmp.Or(h.MaxUnrelayed, 30*time.Second)
	h.Timeout = cmp.Or(h.Timeout, 2*time.Second)
	return h
}

// Validate reports everything that is wrong with the configuration. It expects one that has its defaults.
func (h Health) Validate() error {
	var errs []error
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"MaxBacklogAge", h.MaxBacklogAge}, {"MaxUnrelayed", h.MaxUnrelayed}, {"Timeout", h.Timeout}} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("Config.Health.%s is %s: want more than 0, or 0 for the default", d.field, d.value))
		}
	}
	for i, name := range h.Require {
		if !slices.Contains(optional, name) {
			errs = append(errs, fmt.Errorf("Config.Health.Require[%d] is %q: want one of %s", i, name, strings.Join(optional, ", ")))
		}
	}
	return errors.Join(errs...)
}

// check is what one check found.
type check struct {
	Name      string `json:"name"`
	OK        bool   `json:"ok"`
	Tolerated bool   `json:"tolerated,omitempty"` // it is not OK, and the service is ready
	Problem   string `json:"problem,omitempty"`   // or, where it is OK, what is worth knowing
	Error     string `json:"error,omitempty"`     // its cause

	cause error // errors of drivers name users, databases and hosts
}

// detail is how much an answer says of a check.
type detail int

const (
	terse   detail = iota // for everybody, where there is a server for operators
	reasons               // for everybody, where there is none
	causes                // for operators
)

// verdict is the answer of /readyz.
type verdict struct {
	Ready  bool    `json:"ready"`
	Checks []check `json:"checks"`
}

// in returns the verdict with so much detail.
func (v verdict) in(d detail) verdict {
	v.Checks = slices.Clone(v.Checks)
	for i := range v.Checks {
		c := &v.Checks[i]
		switch {
		case d == terse:
			c.Problem = ""
		case d == causes && c.cause != nil:
			c.Error = c.cause.Error()
		}
	}
	return v
}

// judge decides about readiness.
func (h Health) judge(checks []check) verdict {
	v := verdict{Ready: true, Checks: checks}
	for i := range checks {
		c := &checks[i]
		c.Tolerated = !c.OK && slices.Contains(optional, c.Name) && !slices.Contains(h.Require, c.Name)
		v.Ready = v.Ready && (c.OK || c.Tolerated)
	}
	return v
}

// judgeOutbox decides what a report means.
func (h Health) judgeOutbox(r *outboxadmin.Report) []check {
	var late, alone []string
	for _, s := range r.Shards {
		if age := r.Age(s.Oldest).Truncate(time.Second); !s.Held && age > h.MaxUnrelayed {
			alone = append(alone, fmt.Sprintf("%d (%s events, the oldest for %s)", s.Shard, s.Pending, age))
		}
		if age := r.Age(s.OldestMoving).Truncate(time.Second); age > h.MaxBacklogAge {
			by := "which no relay holds"
			if s.Held {
				by = "held by relay " + s.Relay
			}
			if s.Suspect != "" {
				by += fmt.Sprintf(", which suspects event %s", s.Suspect)
			}
			late = append(late, fmt.Sprintf("%d (%s, %s)", s.Shard, age, by))
		}
	}
	relays, backlog := check{Name: checkRelays, OK: len(alone) == 0}, check{Name: checkBacklog, OK: len(late) == 0}
	if !relays.OK {
		relays.Problem = "no relay holds the shards " + strings.Join(alone, ", ") + ": see that one runs, in a service or by \"millrace relay\""
	}
	if !backlog.OK {
		backlog.Problem = fmt.Sprintf("events wait for more than %s in the shards %s: see the relay's log, \"millrace outbox status\" and whether the broker takes messages",
			h.MaxBacklogAge, strings.Join(late, ", "))
	}
	if waiting := waitingTopics(r); waiting != "" {
		backlog.Problem = strings.TrimPrefix(backlog.Problem+"; "+waiting, "; ")
	}
	return []check{relays, backlog}
}

// waitingTopics names the topics that are paused or failing. They make no service unready: its other topics go on, and its outbox
// keeps their events.
func waitingTopics(r *outboxadmin.Report) string {
	var list []string
	for _, t := range r.Topics {
		since := r.Age(t.Since).Truncate(time.Second)
		switch t.State {
		case outboxadmin.TopicPaused:
			list = append(list, fmt.Sprintf("topic %s was paused %s ago by %s", t.Topic, since, cmp.Or(t.By, "an operator")))
		case outboxadmin.TopicFailing:
			list = append(list, fmt.Sprintf("the broker has taken no event of topic %s for %s: \"millrace outbox status\" says why", t.Topic, since))
		}
	}
	if len(list) > maxWaitingTopics {
		list = append(list[:maxWaitingTopics], fmt.Sprintf("and %d more topics", len(list)-maxWaitingTopics))
	}
	return strings.Join(list, "; ")
}

// maxWaitingTopics bounds how many topics, and how many consumers, /readyz names.
const maxWaitingTopics = 10

// judgePauses names the consumers that are paused. The service is ready: its other consumers go on, and it takes requests.
func judgePauses(pauses []claim.Pause, now time.Time) check {
	var list []string
	for _, p := range pauses[:min(len(pauses), maxWaitingTopics)] {
		list = append(list, fmt.Sprintf("consumer %s has been paused for %s, because its events fail one after the other: \"millrace doctor\" and the log have the error", p.Consumer, now.Sub(p.Since).Truncate(time.Second)))
	}
	return check{Name: checkHandlers, OK: true, Problem: strings.Join(list, "; ")}
}

const (
	// probeEvery is for how long a verdict is given again, so that probes do not load the database.
	probeEvery = time.Second
	// uncountedFor is how long the outbox is left in peace when it could not be counted, which kept the server busy.
	uncountedFor = 30 * time.Second
	// knockEvery is the same for the broker, which charges for such questions, or counts them.
	knockEvery = 5 * time.Second
)

// health answers the probes. It is safe for concurrent use.
type health struct {
	cfg       Health
	pool      *pgxpool.Pool // of its own, lest it wait for a connection behind handlers; nil: there is no database
	schema    string
	transport transport.Transport
	stopping  <-chan struct{} // closed when the service takes nothing more
	paused    func() []claim.Pause
	log       *slog.Logger

	mu            sync.Mutex // held while the checks run: probes that come meanwhile get the same verdict
	asked, knocks time.Time
	uncounted     time.Time // when the outbox could not be counted
	last          verdict
	broker        check
	logged        map[string]string // by check: the cause that was logged last
}

// newHealth returns what checks the service's database and its broker. Without a database the broker is required: there is no outbox
// that would keep what requests publish.
func (s *Service) newHealth() (h *health, err error) {
	h = &health{cfg: s.cfg.Health, schema: s.cfg.Postgres.Schema, transport: s.transport, stopping: s.stopping, paused: s.paused, log: s.log, logged: map[string]string{}}
	if s.bare {
		h.cfg.Require = append(slices.Clone(h.cfg.Require), checkBroker)
		return h, nil
	}
	own := s.pool.Config()
	own.MaxConns, own.MinConns, own.MinIdleConns = 1, 0, 0
	if h.pool, err = pgxpool.NewWithConfig(context.Background(), own); err != nil { // which connects when it is asked
		return nil, fmt.Errorf("make the pool of the health checks: %w", err)
	}
	return h, nil
}

func (h *health) close() {
	if h.pool != nil {
		h.pool.Close()
	}
}

// register adds the probes' paths, whose answers have so much detail.
func (h *health) register(mux *web.Routes, d detail) {
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
	_ = json.NewEncoder(w).Encode(body) // the client has gone
}

// verdict is that of the checks, or that the service stops, also when it begins to stop while they run.
func (h *health) verdict(ctx context.Context) verdict {
	if !h.stops() {
		if v := h.check(ctx); !h.stops() {
			return v
		}
	}
	return verdict{Checks: []check{{Name: checkStopping, Problem: "the service stops: send requests elsewhere"}}}
}

func (h *health) stops() bool {
	select {
	case <-h.stopping:
		return true
	default:
		return false
	}
}

func (h *health) check(ctx context.Context) verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.asked) < probeEvery {
		return h.last
	}
	// Others get this verdict, too: it must not fail because this probe's client has gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.cfg.Timeout)
	var knocking, watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { // slow checks do not keep a balancer from learning that the service stops
		select {
		case <-h.stopping:
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
	if h.stops() { // which made the checks fail
		return h.last
	}
	h.last, h.asked = h.cfg.judge(append(checks, h.broker, judgePauses(h.paused(), time.Now()))), time.Now()
	h.logCauses(h.last.Checks)
	return h.last
}

// logCauses logs the cause of each problem, once while it stays the same.
func (h *health) logCauses(checks []check) {
	for _, c := range checks {
		cause := ""
		if c.cause != nil {
			cause = c.cause.Error()
		}
		if cause != "" && cause != h.logged[c.Name] {
			h.log.Warn("a check of "+web.ReadyPath+" has failed", slog.String("check", c.Name), slog.Any("error", c.cause))
		}
		h.logged[c.Name] = cause
	}
}

// knock asks the broker. A transport that cannot ask has nothing to tell.
func (h *health) knock(ctx context.Context) {
	if h.broker.OK && time.Since(h.knocks) < knockEvery {
		return
	}
	h.broker = check{Name: checkBroker, OK: true}
	if p, ok := h.transport.(transport.Pinger); ok {
		if err := p.Ping(ctx); err != nil {
			h.broker = check{Name: checkBroker, Problem: h.transport.Name() + " does not answer: the log has the error", cause: err}
		}
	}
	h.knocks = time.Now()
}

// database asks one question after the other, until there is no point in the next.
func (h *health) database(ctx context.Context) []check {
	checks := []check{{Name: checkPostgres, OK: true}, {Name: checkTables, OK: true}}
	unknown := func(why string, cause error) []check {
		for _, name := range []string{checkTables, checkRelays, checkBacklog}[len(checks)-1:] {
			checks = append(checks, check{Name: name, Problem: why, cause: cause})
			cause = nil // once
		}
		return checks
	}
	var readOnly bool // as that of a server is which is a standby, by a failover that the DSN has not followed
	err := h.pool.QueryRow(ctx, "select current_setting('transaction_read_only')::bool", pgx.QueryExecModeSimpleProtocol).Scan(&readOnly)
	switch {
	case err != nil:
		checks = []check{{Name: checkPostgres, Problem: "PostgreSQL does not answer: the log has the error", cause: err}}
		return unknown("not known, as PostgreSQL does not answer", nil)
	case readOnly:
		checks[0] = check{Name: checkPostgres, Problem: "PostgreSQL takes no writes: see that Config.Postgres.DSN (postgres.dsn) names the primary server, and that it is not read-only"}
	}
	if err := checkSchema(ctx, h.pool, h.schema); err != nil {
		checks[1] = check{Name: checkTables, Problem: "the tables are missing, or of another version, or could not be read: \"millrace migrate status\" and the log say what is wrong", cause: err}
		return unknown("not known without the tables", nil)
	}
	var report *outboxadmin.Report
	err = outboxadmin.ErrNotCounted
	if time.Since(h.uncounted) > uncountedFor {
		report, err = outboxadmin.InspectBacklog(ctx, h.pool, h.schema)
	}
	switch {
	case errors.Is(err, outboxadmin.ErrNotCounted): // no reason to take a service out, let alone all of them during a backup
		if time.Since(h.uncounted) > uncountedFor {
			h.uncounted = time.Now()
		}
		for _, name := range []string{checkRelays, checkBacklog} {
			checks = append(checks, check{Name: name, OK: true, Problem: "not known: " + outboxadmin.ErrNotCounted.Error()})
		}
		return checks
	case err != nil:
		return unknown("the outbox cannot be read: the log has the error", err)
	}
	return append(checks, h.cfg.judgeOutbox(report)...)
}
