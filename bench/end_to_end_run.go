package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/bench/internal/wait"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

const (
	// probes is how long events are offered before the clock starts.
	probes = 500 * time.Millisecond
	// handlerConns are the consumer's connections: one for each handler that the transport runs at once, and the two that
	// claim.Concurrency leaves to others.
	handlerConns = transport.DefaultConcurrency + 2
	// backlogGrace is how long after the last commit events may still be on their way. What is there then is a backlog.
	backlogGrace = 2 * time.Second
	// paceSlack is how late the last commits may be, beside a twentieth of the time.
	paceSlack = 500 * time.Millisecond
)

// effects is what the handler writes: a row for each time that it ran.
type effects struct{ schema string }

func (e effects) table() string { return e.schema + ".effects" }

func (e effects) create(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, `create table `+e.table()+` (id bigint generated always as identity primary key, event_id uuid not null)`)
	return err
}

func (e effects) handle(msg *message.Message) error {
	tx, ok := pgtx.From(msg.Context())
	if !ok {
		return errNoTransaction
	}
	_, err := tx.Exec(msg.Context(), `insert into `+e.table()+` (event_id) values ($1)`, msg.UUID)
	return err
}

// count returns how many effects there are, and of how many events.
func (e effects) count(ctx context.Context, pool *pgxpool.Pool) (all, distinct int, err error) {
	err = pool.QueryRow(ctx, `select count(*), count(distinct event_id) from `+e.table()).Scan(&all, &distinct)
	return all, distinct, err
}

// measure runs the whole way once, in a schema and a project of its own.
func (j *journey) measure(ctx context.Context, env *environment) (err error) {
	return withSchema(ctx, env.dsn, func(pool *pgxpool.Pool, schema string) (err error) {
		// A pool of the producers' own: a commit must not wait for a connection.
		committing, err := openPool(ctx, env.dsn, int32(max(1, env.size.pace/perWorker)), 0)
		if err != nil {
			return err
		}
		defer committing.Close()
		r, err := j.broker.open(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.close()) }()
		w, err := newWay(ctx, pool, schema, r)
		if err != nil {
			return err
		}
		w.producer.pool, w.mayBeLate = committing, j.broker.name != ""
		if err := w.start(ctx, env.dsn, j.ordered); err != nil {
			return err
		}
		err = w.offer(ctx, env.size.pace, env.size.box)
		if err := errors.Join(err, w.stop()); err != nil {
			return err
		}
		if err := w.check(ctx); err != nil {
			return err
		}
		took, err := between(w.committed, w.done, w.probes)
		if err != nil {
			return err
		}
		j.p50, j.p99, j.max = append(j.p50, percentile(took, 0.5)), append(j.p99, percentile(took, 0.99)), append(j.max, took[len(took)-1])
		j.facts = append(j.facts, w.fact)
		return nil
	})
}

// way is one run from producers to a consumer.
type way struct {
	pool      *pgxpool.Pool // for questions
	schema    string
	room      *room
	effects   effects
	handler   message.NoPublishHandlerFunc
	producer  withOutbox
	grace     time.Duration
	mayBeLate bool // what is late is told, and no failure: a broker that is too slow for the pace on this machine

	committed, done *times
	probes          int // events that are not measured
	stops           []func() error
	fact            string
}

// newWay creates the tables.
func newWay(ctx context.Context, pool *pgxpool.Pool, schema string, r *room) (*way, error) {
	e, o := effects{schema}, orders{schema}
	if err := errors.Join(outbox.Migrate(ctx, pool, schema), claim.Migrate(ctx, pool, schema), e.create(ctx, pool), o.create(ctx, pool)); err != nil {
		return nil, fmt.Errorf("create tables: %w", err)
	}
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
	if err != nil {
		return nil, err
	}
	return &way{
		pool: pool, schema: schema, room: r, effects: e, handler: e.handle,
		producer: withOutbox{pool, o, publisher, "pgtx.Run"}, grace: backlogGrace, committed: newTimes(), done: newTimes(),
	}, nil
}

// start runs the relay and the consumer.
func (w *way) start(ctx context.Context, dsn string, ordered bool) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, w.stop())
		}
	}()
	config := w.room.config()
	config.Logger = slog.New(slog.DiscardHandler)
	t, err := pubsub.New(ctx, config)
	if err != nil {
		return err
	}
	w.stops = append(w.stops, t.Close)
	s, err := t.Subscriber(transport.SubscriberConfig{Consumer: consumerName, Ordered: ordered})
	if err != nil {
		return err
	}
	pool, err := openPool(ctx, dsn, handlerConns, 0)
	if err != nil {
		return err
	}
	w.stops = append(w.stops, func() error { pool.Close(); return nil })
	guard, err := claimed(pool, w.schema, claim.Config{})()
	if err != nil {
		return err
	}
	// The router outlives ctx, so that what is in hand is settled.
	stop, err := route(context.WithoutCancel(ctx), func(router *message.Router) {
		router.AddMiddleware(w.stamp, guard)
		router.AddConsumerHandler(handlerName, topic, s, w.handler)
	})
	if err != nil {
		return err
	}
	w.stops = append(w.stops, stop)
	p, err := t.Publisher()
	if err != nil {
		return err
	}
	relays, err := startRelays(ctx, dsn, w.schema, p, 1) // its batch size is the default
	if err != nil {
		return err
	}
	w.stops = append(w.stops, relays)
	return nil
}

// stamp notes when the transaction of the handler has committed.
func (w *way) stamp(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		out, err := h(msg)
		if err == nil {
			w.done.note(msg.UUID, time.Now().UnixNano())
		}
		return out, err
	}
}

// offer commits events for that long, after those that are not measured, and waits until all have had their effect.
func (w *way) offer(ctx context.Context, perSecond int, lasts time.Duration) error {
	note := func(id string, at time.Time) { w.committed.note(id, at.UnixNano()) }
	commit := w.producer.commit
	if err := pace(ctx, probes, perSecond, commit, note); err != nil {
		return err
	}
	if err := w.settle(ctx, recordTimeout); err != nil {
		return err
	}
	w.probes = w.committed.count()
	began := time.Now()
	if err := pace(ctx, lasts, perSecond, commit, note); err != nil {
		return err
	}
	took, behind := time.Since(began), w.committed.count()-w.done.count()
	w.fact = fmt.Sprintf("%s events/s were committed, %d were on their way at the last commit",
		thousands(float64(w.committed.count()-w.probes)/took.Seconds()), behind)
	if took > lasts+lasts/20+paceSlack {
		err := fmt.Errorf("the producers were too slow: %d events in %v: want %v", w.committed.count()-w.probes, took, lasts)
		if !w.mayBeLate {
			return err
		}
		w.fact += "; " + err.Error()
	}
	err := w.settle(ctx, w.grace)
	if w.mayBeLate && errors.Is(err, errBacklog) {
		w.fact += "; " + err.Error()
		return w.settle(ctx, recordTimeout)
	}
	return err
}

var errBacklog = errors.New("a backlog is left")

// settle waits until every event has had its effect and is out of the outbox.
func (w *way) settle(ctx context.Context, within time.Duration) error {
	deadline := time.Now().Add(within)
	for {
		rows, err := millrace{}.left(ctx, w.pool, w.schema)
		if err != nil {
			return err
		}
		missing := w.committed.count() - w.done.count()
		if rows == 0 && missing <= 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w %v after the last commit: %d rows in the outbox, %d of %d events without effect", errBacklog, within, rows, missing, w.committed.count())
		}
		if !wait.For(ctx, 10*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// stop ends the relay first and the transport last.
func (w *way) stop() (err error) {
	for len(w.stops) > 0 {
		err = errors.Join(err, w.stops[len(w.stops)-1]())
		w.stops = w.stops[:len(w.stops)-1]
	}
	return err
}

// check counts, after the end: one effect for each event, each message acked.
func (w *way) check(ctx context.Context) error {
	all, distinct, err := w.effects.count(ctx, w.pool)
	if err != nil {
		return err
	}
	if events := w.committed.count(); all != events || distinct != events {
		return fmt.Errorf("%d events had %d effects, of %d events: want each once", events, all, distinct)
	}
	left, err := w.room.unsettled(ctx)
	if err == nil && left > 0 {
		err = fmt.Errorf("%d messages were not delivered once and acked", left)
	}
	return err
}
