package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// batchSize is how many rows a relay takes at once, Millrace's and, where nothing else is said, the peer's.
	batchSize = 1000
	// drainTimeout ends a run that does not get on.
	drainTimeout = 5 * time.Minute
)

// drainer is a contestant of relayDrain.
type drainer interface {
	name() string
	// note tells people what the contestant is.
	note() string
	// create makes the tables in the schema.
	create(ctx context.Context, pool *pgxpool.Pool, schema string) error
	// table is the one that holds the events.
	table(schema string) string
	// write commits the events in one transaction.
	write(ctx context.Context, pool *pgxpool.Pool, schema string, events []event) error
	// drain hands all events to the sink until ctx ends, which is when the sink has them all or the time box is over;
	// then it records what was published and returns. This is what the clock measures.
	drain(ctx context.Context, pool *pgxpool.Pool, schema string, to *sink) error
	// left counts the events that the table still holds as unpublished.
	left(ctx context.Context, pool *pgxpool.Pool, schema string) (int, error)
}

// burier is a drainer that can have dead rows under its backlog.
type burier interface {
	drainer
	// bury makes every row of the table look as after its publishing, by one statement.
	bury(ctx context.Context, pool *pgxpool.Pool, schema string) error
}

// trial is one drain.
type trial struct {
	drainer
	series string // of the report that it belongs to
	events []event
	box    time.Duration // ends the drain early, for a rate; 0: it has to get through
	broker time.Duration // what the broker takes for a request; 0: it does nothing
	buried []event       // already published, and dead under a snapshot that a stranger holds; nil: nobody holds one
	from   *depot        // has the events; nil: they are written
}

// outcome is what a trial measured.
type outcome struct {
	published int
	took      time.Duration
}

func (o outcome) rate() float64 { return float64(o.published) / o.took.Seconds() }

// run fills a table, measures how long the contestant takes to drain it, and checks that it did. In a time box it
// measures how much the contestant has published by its end, and checks that these are events, each of them once.
func (t trial) run(ctx context.Context, dsn string) (o outcome, err error) {
	err = withSchema(ctx, dsn, func(pool *pgxpool.Pool, schema string) error {
		release, err := t.prepare(ctx, dsn, pool, schema)
		if err != nil {
			return err
		}
		defer release()

		ctx, cancel := context.WithTimeout(ctx, drainTimeout)
		defer cancel()
		drainCtx, stop := context.WithCancel(ctx)
		defer stop()
		to := newSink(len(t.events), stop)
		to.request = t.broker
		runtime.GC() // nobody pays for the garbage of the load

		began := time.Now()
		if t.box > 0 {
			defer time.AfterFunc(t.box, func() { to.closeBox(); stop() }).Stop()
		}
		err = t.drain(drainCtx, pool, schema, to)
		o = outcome{published: len(t.events), took: time.Since(began)}

		if err := errors.Join(err, ctx.Err()); err != nil {
			return fmt.Errorf("drain: %w", err)
		}
		if n, last, over := to.boxed(); over && n < len(t.events) {
			o = outcome{published: n, took: last.Sub(began)}
			return to.checkSome(t.events)
		}
		if err := to.check(t.events); err != nil {
			return err
		}
		left, err := t.left(ctx, pool, schema)
		if err == nil && left != 0 {
			err = fmt.Errorf("%d published events are not recorded as such", left)
		}
		return err
	})
	if err != nil {
		return o, fmt.Errorf("%s: %w", t.name(), err)
	}
	return o, nil
}

// prepare makes and fills the tables. The returned function ends the stranger's transaction, if there is one.
func (t trial) prepare(ctx context.Context, dsn string, pool *pgxpool.Pool, schema string) (release func(), err error) {
	if err := t.create(ctx, pool, schema); err != nil {
		return nil, fmt.Errorf("create tables: %w", err)
	}
	release = func() {}
	if t.buried != nil {
		if release, err = holdSnapshot(ctx, dsn); err != nil {
			return nil, fmt.Errorf("hold a snapshot: %w", err)
		}
		err = t.fill(ctx, pool, schema, t.buried)
		if err == nil {
			err = t.drainer.(burier).bury(ctx, pool, schema)
		}
	}
	if err == nil {
		err = t.fill(ctx, pool, schema, t.events)
	}
	if err == nil {
		err = settle(ctx, pool, t.table(schema))
	}
	if err != nil {
		release()
		return nil, fmt.Errorf("write the backlog: %w", err)
	}
	return release, nil
}

// fill commits the events in transactions of 1,000, or takes the result of that from the depot.
func (t trial) fill(ctx context.Context, pool *pgxpool.Pool, schema string, events []event) error {
	if done, err := t.from.copyTo(ctx, pool, t.drainer, schema, events); done || err != nil {
		return err
	}
	return writeAll(ctx, pool, t.drainer, schema, events)
}

func writeAll(ctx context.Context, pool *pgxpool.Pool, d drainer, schema string, events []event) error {
	for part := range slices.Chunk(events, 1000) {
		if err := d.write(ctx, pool, schema, part); err != nil {
			return err
		}
	}
	return nil
}

// holdSnapshot opens a transaction that reads, and stays open: as long as it does, no dead row is removed.
func holdSnapshot(ctx context.Context, dsn string) (release func(), err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	release = func() { conn.Close(context.WithoutCancel(ctx)) }
	if _, err := conn.Exec(ctx, `begin isolation level repeatable read; select count(*) from pg_class`); err != nil {
		release()
		return nil, err
	}
	return release, nil
}
