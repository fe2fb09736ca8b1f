// Package crashguard finds poison messages: events that kill the process that handles them. Such an event makes its process exit,
// run out of memory, or crash in a goroutine of the handler. After a process was killed, the next processes mark each event before
// its handler runs. An event whose mark was not cleared was in flight when its process died. It is run alone: if the process dies
// again, the event is known to be the cause.
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

// Config configures a Guard. Every field is required.
type Config struct {
	Store     *store.Postgres
	Service   string
	MaxStarts int // how often an event may be started alone; negative: no event is marked
	Logger    *slog.Logger

	Timeout func(consumer string) time.Duration // of a handler
	Longest time.Duration                       // the longest timeout of all handlers

	Pauses func(now time.Time) json.RawMessage // describes the paused consumers

	Journal func(ctx context.Context, db store.Execer, run int64) error // writes the counts
}

// Guard marks events, or runs them alone, while Run runs and another process of the service may have been killed. It is safe for
// concurrent use.
type Guard struct {
	Pace Pace  // set it before Run
	Gate *Gate // of the handlers; set it before Run

	cfg  Config
	life life
}

// New returns a Guard whose handlers share the process's gate with the handlers of other Guards.
func New(cfg Config) *Guard { return &Guard{Pace: defaultPace, Gate: &hands, cfg: cfg} }

// Standing returns whether the process is registered, and whether it is suspicious.
func (g *Guard) Standing() (registered, suspicious bool) {
	g.life.mu.Lock()
	defer g.life.mu.Unlock()
	return g.life.standing.run != 0, g.life.standing.suspicious
}

// Run reports in the database that this process is alive, until ctx ends. Then it waits for the messages in flight and records a
// clean stop. From the start of Run on, messages wait for the registration. Run calls begin before the registration, and beside,
// until ctx ends, after it.
func (g *Guard) Run(ctx context.Context, begin func() (end func(), err error), beside func(ctx context.Context)) error {
	s := g.cfg.Store
	if err := g.life.begin(); err != nil {
		return err
	}
	defer g.life.end()
	if err := store.Migrations.Check(ctx, s.Pool, s.Schema); err != nil {
		if ctx.Err() != nil { // stopped before the start
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
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx)) // a process that drains must not look killed to the others
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

// Sweep removes the rows and marks of processes that died long ago.
func (g *Guard) Sweep(ctx context.Context) (err error) {
	for _, name := range []string{"run_sweep", "start_sweep"} {
		_, serr := g.cfg.Store.Pool.Exec(ctx, store.Query(name, g.cfg.Store.Schema))
		err = errors.Join(err, serr)
	}
	return err
}

// run is the process as registered in the database. Its methods are called one after another.
type run struct {
	guard  *Guard
	store  *store.Postgres
	id     int64 // 0: not registered
	conn   *pgx.Conn
	wrote  time.Time // when the journal was last written
	warned bool      // it logged that a process may have been killed
	neighbours
}

func (r *run) query(name string) string { return store.Query(name, r.store.Schema) }

// register retries until the process is registered or ctx ends. It returns an error that retries cannot fix.
func (r *run) register(ctx context.Context) error {
	for {
		err := r.exchange(ctx)
		if err == nil {
			return nil
		}
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && strings.HasPrefix(pgErr.Code, "42") { // no privilege, or no table
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

// write writes the journal when it is due. The process can run without it, so an error is only logged.
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
	r.guard.cfg.Logger.WarnContext(ctx, "renew the record of this process", "error", err)
}

// pause waits for the next beat. It returns false if ctx has ended.
func (r *run) pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(r.Beat):
		return true
	}
}

// exchange registers the process or renews its row, and reads the rows of the others.
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
		if renewed.RowsAffected() == 0 { // after a day without the database, or after a restore
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
	if r.guard.cfg.MaxStarts < 0 {
		suspicious, killed = false, false
	}
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

// connect opens a connection outside of the pool, because handlers may use all of the pool's.
func (r *run) connect(ctx context.Context) (err error) {
	if r.conn != nil {
		return nil
	}
	cfg := r.store.Pool.Config()
	if cfg.BeforeConnect != nil { // a source of passwords that change
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
