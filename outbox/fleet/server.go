package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgdsn"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/internal/store"
)

// application is the name of the sessions that only ask. A watch leaves them out.
const application = "millrace-fleet"

// archiveEvery is how often each database has a relay where the relays keep an archive, whose days they make and drop.
const archiveEvery = 6 * time.Hour

// closeTimeout bounds the closing of a connection.
const closeTimeout = time.Second

// startTimeout bounds the start of a relay.
const startTimeout = 30 * time.Second

// errNotBegun is the failure of a start that hangs, until its turn ends or for startTimeout.
var errNotBegun = errors.New("its relay has not started in time: see what its statements wait for, such as a lock on the tables of the outbox")

// server carries out what its core decides: one goroutine owns the core, and each action runs in its own.
type server struct {
	address string
	fleet   *Fleet
	log     *slog.Logger
	core    *core
	inputs  chan any // the types below
	running int      // actions under way
	relays  map[Database]context.CancelFunc
	told    map[Database]bool // whose failure is logged

	mu      sync.Mutex
	wanted  []Database
	changed chan struct{} // gets one when they are others
	end     context.CancelFunc
	status  []Status
	used    int
}

type (
	asked struct {
		db     Database
		answer probe
	}
	looked struct {
		db     Database
		answer probe
	}
	ended struct {
		db  Database
		err error
	}
	watched struct{ found store.Changes }
)

func newServer(address string, f *Fleet) *server {
	every := time.Duration(0)
	if f.cfg.Relay.Archive > 0 {
		every = archiveEvery
	}
	return &server{
		address: address, fleet: f, log: f.cfg.Relay.Logger.With("server", address),
		core:   newCore(f.cfg.Connections, f.cfg.Relay.PollInterval, every, jitter),
		inputs: make(chan any), relays: map[Database]context.CancelFunc{}, told: map[Database]bool{}, changed: make(chan struct{}, 1),
	}
}

// addressOf is the host and port of a database's server.
func addressOf(db Database) (string, error) {
	cfg, err := pgdsn.Parse(db.DSN)
	if err != nil {
		return "", fmt.Errorf("the DSN of database %q is %w", db.Name, err)
	}
	all := []string{fmt.Sprintf("%s:%d", cfg.ConnConfig.Host, cfg.ConnConfig.Port)}
	for _, f := range cfg.ConnConfig.Fallbacks {
		if a := fmt.Sprintf("%s:%d", f.Host, f.Port); !slices.Contains(all, a) { // one is there twice, with TLS and without
			all = append(all, a)
		}
	}
	return strings.Join(all, ","), nil
}

// set says which databases the server has.
func (s *server) set(databases []Database) {
	s.mu.Lock()
	s.wanted = databases
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *server) databases() []Database {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wanted
}

// empty reports whether the server had no databases before, and nothing is left of any.
func (s *server) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.wanted) == 0 && len(s.status) == 0
}

// run works until ctx has ended and its relays have.
func (s *server) run(ctx context.Context) {
	var watch sync.WaitGroup
	watch.Go(func() { s.watch(ctx) })
	defer watch.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil || s.running > 0 {
		if ctx.Err() == nil {
			actions, wait := s.core.steps(time.Now())
			for _, a := range actions {
				s.do(ctx, a)
			}
			timer.Reset(wait)
		}
		s.report()
		stopped := ctx.Done()
		if ctx.Err() != nil {
			stopped = nil // only what runs is waited for
		}
		select {
		case <-stopped:
		case <-s.changed:
			s.core.set(time.Now(), s.databases())
		case input := <-s.inputs:
			s.apply(time.Now(), input)
		case <-timer.C:
		}
	}
}

func (s *server) apply(now time.Time, input any) {
	switch in := input.(type) {
	case asked:
		s.running--
		s.core.probed(now, in.db, in.answer)
		s.tell(in.db)
	case looked:
		s.core.looked(now, in.db, in.answer)
		if in.answer.err == nil {
			s.tell(in.db)
		}
	case ended:
		s.running--
		delete(s.relays, in.db)
		s.core.ended(now, in.db, in.err)
		s.tell(in.db)
	case watched:
		s.core.look(now, in.found.All, in.found.Databases, in.found.Server)
	}
}

func (s *server) do(ctx context.Context, a action) {
	switch a.kind {
	case ask:
		s.running++
		go func() { s.inputs <- asked{a.db, s.ask(ctx, a.db)} }()
	case start:
		s.running++
		own, cancel := context.WithCancel(ctx)
		s.relays[a.db] = cancel
		go func() {
			defer cancel()
			begun, err := s.forward(own, a.db)
			switch {
			case ctx.Err() != nil, own.Err() != nil && begun:
				err = nil // it was stopped, which is no failure
			case own.Err() != nil:
				err = errNotBegun
			}
			s.inputs <- ended{a.db, err}
		}()
	case stop:
		s.relays[a.db]()
	}
}

// tell logs the first failure of a database, and when there is none any more.
func (s *server) tell(db Database) {
	e := s.core.entries[db]
	switch failures, err := e.failing(); {
	case e.gone: // it is no database of the fleet any more
	case errors.Is(err, context.Canceled): // the fleet ends
	case failures > 0 && !s.told[db]:
		s.told[db] = true
		s.log.Warn("a database of the fleet does not answer, or its relay does not start: it is tried again and again", "database", db.Name, "error", err)
	case failures == 0 && s.told[db]:
		delete(s.told, db)
		s.log.Info("a database of the fleet is all right again", "database", db.Name)
	}
}

// config is how connections to a database are made.
func (s *server) config(db Database) (*pgxpool.Config, error) {
	cfg, err := pgdsn.Parse(db.DSN)
	if err != nil {
		return nil, err
	}
	cfg.ConnConfig.ConnectTimeout = s.fleet.cfg.Timeout
	return cfg, nil
}

// connect opens a connection that only asks.
func (s *server) connect(ctx context.Context, db Database) (*pgx.Conn, error) {
	cfg, err := s.config(db)
	if err != nil {
		return nil, err
	}
	cfg.ConnConfig.RuntimeParams["application_name"] = application
	return pgx.ConnectConfig(ctx, cfg.ConnConfig)
}

func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // nothing is lost with it
}

// ask asks a database, on a connection of its own, whether there is work.
func (s *server) ask(ctx context.Context, db Database) probe {
	ctx, cancel := context.WithTimeout(ctx, s.fleet.cfg.Timeout)
	defer cancel()
	conn, err := s.connect(ctx, db)
	if err != nil {
		return probe{err: err}
	}
	defer closeConn(ctx, conn)
	return asProbe(store.ProbeDatabase(ctx, conn, s.fleet.cfg.Relay.Schema))
}

// forward runs a relay of the database until ctx ends, and tells whether the relay has begun to forward.
func (s *server) forward(ctx context.Context, db Database) (begun bool, err error) {
	cfg, err := s.config(db)
	if err != nil {
		return false, err
	}
	cfg.MaxConns, cfg.MinConns, cfg.MinIdleConns = relayConnections-1, 0, 0
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "millrace"
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return false, err
	}
	defer pool.Close()
	if admit := s.fleet.cfg.Admit; admit != nil {
		asking, cancel := context.WithTimeout(ctx, s.fleet.cfg.Timeout)
		err := admit(asking, pool)
		cancel()
		if err != nil {
			return false, err
		}
	}
	own := s.fleet.cfg.Relay
	own.Database, own.Logger = db.Name, own.Logger.With("database", db.Name)
	relay, err := outbox.NewRelay(pool, s.fleet.publisher, own)
	if err != nil {
		return false, err
	}
	done := make(chan error, 1)
	starting, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { done <- relay.Run(starting) }()
	late := time.NewTimer(startTimeout)
	defer late.Stop()
	select {
	case <-relay.Running():
	case err := <-done:
		return false, err
	case <-late.C:
		cancel()
		return false, errors.Join(errNotBegun, <-done)
	}
	for tick := time.NewTicker(workEvery); ; {
		select {
		case err := <-done:
			tick.Stop()
			return true, err
		case <-tick.C:
			p := s.lookAt(ctx, pool)
			if ctx.Err() == nil {
				s.inputs <- looked{db, p}
			}
		}
	}
}

// lookAt asks an active database whether there is still work.
func (s *server) lookAt(ctx context.Context, pool *pgxpool.Pool) (p probe) {
	ctx, cancel := context.WithTimeout(ctx, s.fleet.cfg.Timeout)
	defer cancel()
	err := pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		p = asProbe(store.ProbeDatabase(ctx, conn.Conn(), s.fleet.cfg.Relay.Schema))
		return p.err
	})
	p.err = err
	return p
}

// watch tells the core in which databases something may have been committed. It has a connection to one of them.
func (s *server) watch(ctx context.Context) {
	w, lost := store.NewWatch(application), false
	for n := 0; ctx.Err() == nil; n++ {
		if all := s.databases(); len(all) > 0 {
			db := all[n%len(all)]
			err := s.watchBy(ctx, db, w)
			if err != nil && ctx.Err() == nil && !lost {
				s.log.Warn("nothing tells which databases of a server have changed: each is asked by itself meanwhile", "database", db.Name, "error", err)
			}
			lost = err != nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookInterval): // then by the next one
		}
	}
}

// watchBy watches by a connection to the database, as long as that is one of the fleet.
func (s *server) watchBy(ctx context.Context, db Database, w *store.Watch) error {
	opening, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	conn, err := s.connect(opening, db)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for slices.Contains(s.databases(), db) {
		looking, cancel := context.WithTimeout(ctx, lookTimeout)
		found, err := w.Look(looking, conn)
		cancel()
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case s.inputs <- watched{found}:
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	return nil
}

// report keeps what Status and metrics tell.
func (s *server) report() {
	var all []Status
	for db, e := range s.core.entries {
		failures, err := e.failing()
		all = append(all, Status{
			Name: db.Name, Server: s.address, State: e.state.String(), Since: e.since, Failures: failures, Error: err, Dead: e.answer.dead,
		})
	}
	maps.DeleteFunc(s.told, func(db Database, _ bool) bool { return s.core.entries[db] == nil })
	slices.SortFunc(all, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.used = all, s.core.used()+1
}
