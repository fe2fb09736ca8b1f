package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/outbox"
)

const (
	// producers is how many connections commit at once.
	producers = 8
	// drainingRelays is how many relays run beside the producers.
	drainingRelays = 4
	// roundTrip is what a network within a data centre adds to each request.
	roundTrip = 500 * time.Microsecond
)

// outboxWrite measures what the outbox costs the producer. Eight connections commit transactions of one small INSERT,
// with and without an event of 1 KB, in short turns that follow each other directly, each round in the other order; the
// tables are emptied between rounds. A ratio is the transactions per second with the outbox divided by those without.
//
// The peer of each ratio is the same transaction as a service without an outbox makes it, BEGIN, the statement and
// COMMIT with pgx, from the same pool; and for the last one the same producers without relays.
var outboxWrite = scenario{
	name:    "outbox-write",
	summary: "commit a business row with an event: pgtx.Run, a caller's own transaction and oagudo/outbox, each to the same without an outbox",
	full:    size{runs: 20, slowRuns: 12, box: 3 * time.Second},
	quick:   size{runs: 9, slowRuns: 5, box: 400 * time.Millisecond},
	run:     runOutboxWrite,
}

// writes is one run of the scenario.
type writes struct {
	rounds
	pool   *pgxpool.Pool
	schema string
}

func runOutboxWrite(ctx context.Context, env *environment) (r *report, err error) {
	dsn := env.dsn
	facts, err := serverFacts(ctx, dsn, env.source)
	if err != nil {
		return nil, err
	}
	far, err := openPool(ctx, dsn, producers, roundTrip)
	if err != nil {
		return nil, err
	}
	defer far.Close()
	near, err := openPool(ctx, dsn, producers, 0)
	if err != nil {
		return nil, err
	}
	defer near.Close()
	err = withSchema(ctx, dsn, func(pool *pgxpool.Pool, schema string) (err error) {
		w := &writes{rounds: rounds{env: env, unit: "tx/s"}, pool: pool, schema: schema}
		business := orders{schema}
		if err := errors.Join(outbox.Migrate(ctx, pool, schema), business.create(ctx, pool)); err != nil {
			return fmt.Errorf("create tables: %w", err)
		}
		defer func() { err = errors.Join(err, dropSchema(ctx, pool, oagudoSchema(schema))) }()
		oagudo, err := newOagudoWriter(ctx, near, oagudoSchema(schema), business)
		if err != nil {
			return fmt.Errorf("oagudo: create tables: %w", err)
		}
		defer func() { err = errors.Join(err, oagudo.db.Close()) }()
		publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
		if err != nil {
			return err
		}
		with := withOutbox{near, business, publisher, "with_outbox"}
		if err := w.inTurns(ctx, w.env.size.runs, []producer{
			plain{near, business, "plain"}, with, callerTx{with}, oagudo,
		}); err != nil {
			return err
		}
		if err := w.inTurns(ctx, w.env.size.runs, []producer{
			plain{far, business, "plain, far"}, withOutbox{far, business, publisher, "with_outbox, far"},
		}); err != nil {
			return err
		}
		if err := w.besideRelays(ctx, dsn, with); err != nil {
			return err
		}
		r = w.report(facts)
		return nil
	})
	return r, err
}

// inTurns measures the producers one after the other, in rounds.
func (w *writes) inTurns(ctx context.Context, rounds int, all []producer) error {
	var entrants []entrant
	for _, p := range all {
		if _, err := w.turn(ctx, p, w.env.size.box/5, none); err != nil { // connections, prepared statements, pages
			return err
		}
		entrants = append(entrants, entrant{p.name(), p.note(), func(ctx context.Context) (float64, error) {
			return w.turn(ctx, p, w.env.size.box, none)
		}})
	}
	return w.run(ctx, rounds, w.empty, entrants)
}

// besideRelays measures the producers while relays drain what they write, and while none does.
func (w *writes) besideRelays(ctx context.Context, dsn string, p withOutbox) error {
	fromEmpty := func(measure func(ctx context.Context) (float64, error)) func(ctx context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) {
			if err := w.empty(ctx); err != nil {
				return 0, err
			}
			return measure(ctx)
		}
	}
	return w.run(ctx, w.env.size.slowRuns, nil, []entrant{
		{"no relay", "pgtx.Run as above, in turns with the next", fromEmpty(func(ctx context.Context) (float64, error) {
			return w.turn(ctx, p, 2*w.env.size.box, none)
		})},
		{"four relays", "the same while four relays drain it, in this process and into nothing", fromEmpty(func(ctx context.Context) (float64, error) {
			return w.beside(ctx, dsn, p)
		})},
	})
}

func (w *writes) beside(ctx context.Context, dsn string, p withOutbox) (rate float64, err error) {
	to := &counter{}
	stop, err := startRelays(ctx, dsn, w.schema, to, drainingRelays)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := settleRelays(ctx, p, to); err != nil {
		return 0, err
	}
	return w.turn(ctx, p, 2*w.env.size.box, to.count)
}

func (w *writes) turn(ctx context.Context, p producer, lasts time.Duration, drained func() int) (float64, error) {
	return turn(ctx, w.pool, p, w.schema, lasts, drained)
}

// none is the number of events that relays have taken where there are none.
func none() int { return 0 }

// empty truncates all tables, so that no contestant pays for the size that another has left.
func (w *writes) empty(ctx context.Context) error {
	tables := orders{w.schema}.table() + `, ` + millrace{}.table(w.schema) + `, ` + oagudo{}.table(oagudoSchema(w.schema))
	if _, err := w.pool.Exec(ctx, `truncate `+tables); err != nil {
		return fmt.Errorf("empty the tables: %w", err)
	}
	return checkpoint(ctx, w.pool)
}

func (w *writes) report(facts []string) *report {
	r := &report{
		title: fmt.Sprintf("transactions of one INSERT and one event of 1 KB on %d connections; far: %v more for each round trip", producers, roundTrip),
		facts: facts,
		unit:  "transactions/s",
		rates: w.all(),
	}
	r.ratios = []ratios{
		ratio("with_outbox_vs_plain", w.of("with_outbox"), w.of("plain")),
		ratio("with_outbox_vs_plain_rtt", w.of("with_outbox, far"), w.of("plain, far")),
		ratio("caller_tx_vs_plain", w.of("caller_tx"), w.of("plain")),
		ratio("producers_with_relays_vs_without", w.of("four relays"), w.of("no relay")),
		ratio("oagudo_vs_plain", w.of("oagudo"), w.of("plain")),
	}
	return r
}
