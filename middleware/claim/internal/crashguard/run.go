// Package crashguard finds the events that kill the process that handles them. Such an event makes its process exit, run out of
// memory, or die in a goroutine of the handler's. A process that comes after one that was killed marks events before it runs their
// handlers. What is marked and was not cleared was in flight at a death, so it is run alone: if the process dies again, it is known
// of what.
package crashguard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/self"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
)

// exchangeTimeout bounds one exchange with the database.
const exchangeTimeout = 5 * time.Second

// Config configures a Guard. All of it is required.
type Config struct {
	Store     *store.Postgres
	Service   string
	MaxStarts int // how often an event may have been begun alone
	Logger    *slog.Logger

	Timeout func(consumer string) time.Duration // of a handler
	Longest time.Duration                       // of all handlers

	Pauses func(now time.Time) json.RawMessage // what is reported of consumers that are paused

	Journal func(ctx context.Context, db store.Execer, run int64) error // writes what was counted
}

// Guard marks events, or lets them run alone, while it runs and another process of the service may have been killed. It is safe for
// concurrent use.
type Guard struct {
	Pace Pace  // before Run
	Gate *Gate // of the handlers; before Run

	cfg  Config
	life life
}

// New returns a Guard, whose handlers share the process's gate with those of others.
func New(cfg Config) *Guard { return &Guard{Pace: defaultPace, Gate: &hands, cfg: cfg} }

// Standing returns whether the process is registered, and whether it is suspicious.
func (g *Guard) Standing() (registered, suspicious bool) {
	g.life.mu.Lock()
	defer g.life.mu.Unlock()
	return g.life.standing.run != 0, g.life.standing.suspicious
}

// Run says in the database that this process lives, until ctx ends; then it waits for what is in hand, and says that the process has
// ended cleanly. From its first moment messages wait for the registration. begin is called before that, and beside until ctx ends.
func (g *Guard) Run(ctx context.Context, begin func() (end func(), err error), beside func(ctx context.Context)) error {
	s := g.cfg.Store
	if err := g.life.begin(); err != nil {
		return err
	}
	defer g.life.end()
	if err := store.Migrations.Check(ctx, s.Pool, s.Schema); err != nil {
		if ctx.Err() != nil { // it was stopped before it had begun
			return nil
		}
		return err
	}
	end, err := begin()
	if err != nil {
		return err
	}
	defer end()
	r := &run{guard: g, store: s, neighbours: neighbours{Pace: g.Pace}}
	defer r.disconnect()
	if err := r.register(ctx); err != nil {
		return err
	}
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() { beside(ctx) })
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx)) // others must not take a process that drains for a killed one
	defer cancel()
	var beats sync.WaitGroup
	beats.Go(func() { r.keepBeating(hard) })
	<-ctx.Done()
	left := g.life.drain(g.cfg.Longest + g.Pace.Slack)
	cancel()
	beats.Wait()
	if left > 0 {
		return fmt.Errorf("%d handlers have not ended: the next start will be suspicious of their events", left)
	}
	if err := r.leave(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("note the clean stop: %w", err)
	}
	return nil
}

// Sweep removes the rows and notes of processes that are long gone.
func (g *Guard) Sweep(ctx context.Context) (err error) {
	for _, name := range []string{"run_sweep", "start_sweep"} {
		_, serr := g.cfg.Store.Pool.Exec(ctx, store.Query(name, g.cfg.Store.Schema))
		err = errors.Join(err, serr)
	}
	return err
}

// run is the process as the database knows it. Its methods are called one after another.
type run struct {
	guard  *Guard
	store  *store.Postgres
	id     int64 // 0: not registered
	conn   *pgx.Conn
	wrote  time.Time // the journal
	warned bool      // the log says that a process may have been killed
	neighbours
}

func (r *run) query(name string) string { return store.Query(name, r.store.Schema) }

// register tries until the process is registered or ctx ends; an error is one that would not go away.
func (r *run) register(ctx context.Context) error {
	for {
		err := r.exchange(ctx)
		if err == nil {
			return nil
		}
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && strings.HasPrefix(pgErr.Code, "42") { // no privilege, no table
			return fmt.Errorf("register the process: %w", r.store.Hint(err))
		}
		if ctx.Err() == nil {
			r.failed(ctx, err)
		}
		if !r.pause(ctx) {
			return nil
		}
	}
}

func (r *run) keepBeating(ctx context.Context) {
	for r.pause(ctx) {
		if err := r.exchange(ctx); err != nil && ctx.Err() == nil {
			r.failed(ctx, err)
		}
		r.write(ctx)
	}
}

// write writes the journal when it is time. The process lives on without it, so an error is only told.
func (r *run) write(ctx context.Context) {
	if r.conn == nil || time.Since(r.wrote) < r.Journal {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	if err := r.guard.cfg.Journal(ctx, r.conn, r.id); err != nil {
		r.guard.cfg.Logger.WarnContext(ctx, "journal of consumers is not written", "error", err)
	}
	r.wrote = time.Now()
}

func (r *run) failed(ctx context.Context, err error) {
	r.disconnect()
	r.guard.cfg.Logger.WarnContext(ctx, "say that this process lives", "error", err)
}

// pause waits until it is time for the next beat, and reports false when ctx has ended.
func (r *run) pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(r.Beat):
		return true
	}
}

// exchange registers the process or renews its row, and looks at the others.
func (r *run) exchange(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	if err := r.connect(ctx); err != nil {
		return err
	}
	if r.id != 0 {
		renewed, err := r.conn.Exec(ctx, r.query("run_beat"), r.id, r.guard.cfg.Pauses(time.Now()))
		if err != nil {
			return err
		}
		if renewed.RowsAffected() == 0 { // after a day without the database, or in one that was restored
			r.id = 0
		}
	}
	if r.id == 0 {
		if err := r.conn.QueryRow(ctx, r.query("run_begin"), r.guard.cfg.Service, self.Name).Scan(&r.id); err != nil {
			return err
		}
	}
	rows, err := r.conn.Query(ctx, r.query("run_others"), r.id, r.guard.cfg.Service)
	if err != nil {
		return err
	}
	others, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (n neighbour, err error) {
		var seconds float64
		err = row.Scan(&n.id, &n.beat, &seconds)
		n.age = time.Duration(seconds * float64(time.Second))
		return n, err
	})
	if err != nil {
		return err
	}
	suspicious, killed := r.look(others)
	r.guard.life.stand(standing{run: r.id, suspicious: suspicious, alive: r.alive})
	switch {
	case killed && !r.warned:
		r.warned = true
		r.guard.cfg.Logger.WarnContext(ctx, "a process may have been killed: for an hour events are marked before their handlers run, which costs a round trip each; there is nothing to do", "run", r.id)
	case !suspicious && r.warned:
		r.warned = false
		r.guard.cfg.Logger.InfoContext(ctx, "no process was killed within the last hour: events are no longer marked before their handlers run", "run", r.id)
	}
	return nil
}

// connect opens a connection besides the pool, whose connections may all be in the hands of handlers.
func (r *run) connect(ctx context.Context) (err error) {
	if r.conn != nil {
		return nil
	}
	cfg := r.store.Pool.Config()
	if cfg.BeforeConnect != nil { // where passwords come from that change
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return err
		}
	}
	r.conn, err = pgx.ConnectConfig(ctx, cfg.ConnConfig)
	return err
}

func (r *run) disconnect() {
	if r.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = r.conn.Close(ctx)
	r.conn = nil
}

func (r *run) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	if r.id == 0 {
		return nil
	}
	if err := r.guard.cfg.Journal(ctx, r.store.Pool, r.id); err != nil {
		r.guard.cfg.Logger.WarnContext(ctx, "journal of consumers is not written", "error", err)
	}
	_, err := r.store.Pool.Exec(ctx, r.query("run_end"), r.id)
	return err
}
