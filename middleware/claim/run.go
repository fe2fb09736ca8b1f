package claim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/pgdays"
	"github.com/millrace-go/millrace/internal/self"

	"github.com/millrace-go/millrace/middleware/claim/internal/store"
)

// exchangeTimeout bounds one exchange with the database.
const exchangeTimeout = 5 * time.Second

// Run says in the database that this process lives, and keeps its tables, until ctx ends; then it waits for the claims in
// hand, at most a little longer than HandlerTimeout, says that the process has ended cleanly, and returns nil. Start it
// before the router: messages that come before the process is registered wait for that.
//
// Without it claims work, but nothing is done against an event that kills its process, and no old record is dropped. With
// it, a process that finds that another one of its service was killed, within the last hour, notes what it takes in hand, which costs
// each message a round trip, and runs alone what was in hand when a process was killed. After Config.MaxStarts such
// starts that no process has survived the event becomes a dead letter. Events that were in hand beside it lose nothing.
//
// Run holds a connection of its own besides the pool. It returns an error when it cannot start, because the store has no
// PostgreSQL behind it or its schema does not fit, when it runs already, and when handlers did not end.
func (c *Claim) Run(ctx context.Context) error {
	s := c.postgres
	if s == nil {
		return fmt.Errorf("run claim: the store is a %T, with no PostgreSQL behind it: only with claim.NewPostgresStore does Run do anything", c.store)
	}
	r := &run{claim: c, store: s, neighbours: neighbours{pace: c.pace}}
	if err := c.life.begin(); err != nil {
		return fmt.Errorf("run claim: %w", err)
	}
	defer c.life.end()
	if err := store.Migrations.Check(ctx, s.Pool, s.Schema); err != nil {
		if ctx.Err() != nil { // it was stopped before it had begun
			return nil
		}
		return fmt.Errorf("run claim: %w", err)
	}

	stop, err := c.observer.start(s)
	if err != nil {
		return fmt.Errorf("run claim: %w", err)
	}
	defer stop()
	defer r.disconnect()
	if err := r.register(ctx); err != nil {
		return fmt.Errorf("run claim: %w", err)
	}
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() { _ = pgdays.Every(ctx, c.cfg.Logger, "claims", r.housekeep) })
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx)) // others must not take a process that drains for a killed one
	defer cancel()
	var beats sync.WaitGroup
	beats.Go(func() { r.keepBeating(hard) })
	<-ctx.Done()
	left := c.life.drain(c.cfg.longest() + c.pace.slack)
	cancel()
	beats.Wait()
	if left > 0 {
		return fmt.Errorf("run claim: %d handlers have not ended: the next start will be suspicious of their events", left)
	}
	if err := r.leave(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("run claim: note the clean stop: %w", err)
	}
	return nil
}

// run is the process as the database knows it. Its methods are called one after another.
type run struct {
	claim  *Claim
	store  *store.Postgres
	id     int64 // 0: not registered
	conn   *pgx.Conn
	warned bool // the log says that a process may have been killed
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
	}
}

func (r *run) failed(ctx context.Context, err error) {
	r.disconnect()
	r.claim.cfg.Logger.WarnContext(ctx, "say that this process lives", "error", err)
}

// pause waits until it is time for the next beat, and reports false when ctx has ended.
func (r *run) pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(r.beat):
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
		renewed, err := r.conn.Exec(ctx, r.query("run_beat"), r.id, r.claim.pauses(time.Now()))
		if err != nil {
			return err
		}
		if renewed.RowsAffected() == 0 { // after a day without the database, or in one that was restored
			r.id = 0
		}
	}
	if r.id == 0 {
		if err := r.conn.QueryRow(ctx, r.query("run_begin"), r.claim.cfg.Service, self.Name).Scan(&r.id); err != nil {
			return err
		}
	}
	rows, err := r.conn.Query(ctx, r.query("run_others"), r.id, r.claim.cfg.Service)
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
	r.claim.life.stand(standing{run: r.id, suspicious: suspicious, alive: r.alive})
	switch {
	case killed && !r.warned:
		r.warned = true
		r.claim.cfg.Logger.WarnContext(ctx, "a process may have been killed: for an hour events are marked before their handlers run, which costs a round trip each; there is nothing to do", "run", r.id)
	case !suspicious && r.warned:
		r.warned = false
		r.claim.cfg.Logger.InfoContext(ctx, "no process was killed within the last hour: events are no longer marked before their handlers run", "run", r.id)
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
	_, err := r.store.Pool.Exec(ctx, r.query("run_end"), r.id)
	return err
}

func (r *run) housekeep(ctx context.Context) error {
	err := r.store.Housekeep(ctx, r.claim.cfg.Retention)
	for _, name := range []string{"run_sweep", "start_sweep"} {
		_, serr := r.store.Pool.Exec(ctx, r.query(name))
		err = errors.Join(err, serr)
	}
	return err
}
