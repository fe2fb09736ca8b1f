package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/outbox/brokermigration"
	"github.com/millrace-go/millrace/transport"
)

// quietFor is how long Pub/Sub must have delivered nothing before it counts as drained: longer than the ack deadline.
const quietFor = 12 * time.Second

// busyFor is how long the database or a broker may answer a step with nothing but errors.
const busyFor = time.Minute

// other returns the broker that -migrate changes to.
func other(broker string) string {
	if broker == "kafka" {
		return "pubsub"
	}
	return "kafka"
}

// voyage moves the instances to the other broker while guests book.
type voyage struct {
	o     options
	pool  *pgxpool.Pool
	phase atomic.Value // the phase, a string
	since atomic.Int64 // in milliseconds
	calm  atomic.Bool  // no instance should be killed now, because each new one restarts the drain of Pub/Sub
	close func()       // closes the brokers
	query brokermigration.Query
}

// newVoyage connects to both brokers, as "millrace migration" does.
func newVoyage(ctx context.Context, s *stage.Stage, o options) (*voyage, error) {
	v := &voyage{o: o, pool: s.Pool, close: func() {}}
	v.reached(brokermigration.Consume)
	if o.without == "drain" {
		return v, nil
	}
	c := s.Config
	c.Addresses = []string{"127.0.0.1:0"}
	cfg, err := load(ctx, &stage.Part{Config: c}, o)
	if err != nil {
		return nil, err
	}
	b, err := cfg.OpenBrokers(ctx, transport.Environment{})
	if err != nil {
		return nil, err
	}
	v.close = func() { _ = errors.Join(b.From.Close(), b.To.Close()) }
	v.query = brokermigration.Query{Pool: s.Pool, Schema: s.Config.Schema, From: b.From, To: b.To, Quiet: quietFor}
	return v, nil
}

func (v *voyage) reached(phase brokermigration.Phase) {
	v.phase.Store(fmt.Sprint(phase))
	v.since.Store(time.Now().UnixMilli())
}

// line describes the progress. During the migration it changes each second, because nothing else may change in a drain.
func (v *voyage) line() string {
	if v.over() {
		return fmt.Sprint("phase ", v.phase.Load())
	}
	return fmt.Sprintf("phase %s for %d s", v.phase.Load(), (time.Now().UnixMilli()-v.since.Load())/1000)
}

// over reports whether nothing is left to do. Without the drain, the instances move by themselves.
func (v *voyage) over() bool {
	return v.o.without == "drain" || v.phase.Load() == fmt.Sprint(brokermigration.Cut)
}

// embark lets the guests book during the migration.
func (v *voyage) embark(w *stage.Watching) {
	book, state, moment := w.Act, w.State, w.Moment
	w.Act = func(ctx context.Context) error { return stage.Together(ctx, book, v.sail) }
	w.Moment = func() bool { return !v.calm.Load() && moment() }
	w.State = func(ctx context.Context) (string, bool, error) {
		line, all, err := state(ctx)
		return line + ", " + v.line(), all, err
	}
}

// sail makes the steps: the first two after a third of the bookings, the last one after two thirds.
func (v *voyage) sail(ctx context.Context) error {
	if err := v.booked(ctx, v.o.bookings/3); err != nil {
		return err
	}
	if v.o.without == "drain" {
		_, err := v.pool.Exec(ctx, `create table moved ()`)
		return err
	}
	if err := v.step(ctx, brokermigration.Drain); err != nil {
		return err
	}
	calm := time.AfterFunc(2*time.Second, func() { v.calm.Store(true) })
	err := v.step(ctx, brokermigration.Publish)
	calm.Stop()
	v.calm.Store(false)
	if err != nil {
		return err
	}
	if err := v.booked(ctx, v.o.bookings*2/3); err != nil {
		return err
	}
	return v.step(ctx, brokermigration.Cut)
}

// booked waits for n bookings.
func (v *voyage) booked(ctx context.Context, n int) error {
	return v.poll(ctx, func() (done bool, err error) {
		err = v.pool.QueryRow(ctx, `select count(*) >= $1 from bookings`, n).Scan(&done)
		return done, err
	})
}

// step makes the step to a phase as soon as it is safe. A database or a broker may be busy for a moment, as when processes keep the
// lock of the step, or the coordinator of a group moves. So an error is final only if none but errors come for a while.
func (v *voyage) step(ctx context.Context, to brokermigration.Phase) error {
	failing := time.Now()
	return v.poll(ctx, func() (bool, error) {
		r, err := brokermigration.ReadRecord(ctx, v.pool, v.query.Schema)
		if err == nil && r.Phase != to { // else a step whose answer was lost was made
			_, err = brokermigration.Step(ctx, v.query, false, "bookings")
		}
		switch {
		case err == nil:
			v.reached(to)
			return true, nil
		case errors.Is(err, brokermigration.ErrBlocked):
			failing = time.Now()
		case time.Since(failing) > busyFor:
			return false, err
		}
		return false, nil
	})
}

func (v *voyage) poll(ctx context.Context, done func() (bool, error)) error {
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// careless is what -without drain does: the mistake that the drain prevents. Each instance stops its handlers, while its relay continues
// until the process ends. The next instance uses the other broker. Events published in between reach no handler.
type careless struct{ moving chan struct{} }

const movingTakes = 3 * time.Second

// moved reports whether the fleet was told to move.
const moved = `select to_regclass('moved') is not null`

func movedBefore(ctx context.Context, dsn string) (yes bool, err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return yes, conn.QueryRow(ctx, moved).Scan(&yes)
}

// watch ends the process a short time after the fleet was told to move.
func (c careless) watch(ctx context.Context, pool *pgxpool.Pool) error {
	for told := false; ; {
		if err := pool.QueryRow(ctx, moved).Scan(&told); err != nil {
			return err
		}
		if told {
			close(c.moving)
			time.Sleep(movingTakes)
			os.Exit(1)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// middleware holds back messages from then on.
func (c careless) middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		select {
		case <-c.moving:
			<-msg.Context().Done()
			return nil, msg.Context().Err()
		default:
			return next(msg)
		}
	}
}
