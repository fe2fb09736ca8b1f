package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	env    *environment
	pool   *pgxpool.Pool
	schema string
	series []*rates
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
		w := &writes{env: env, pool: pool, schema: schema}
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
	for _, p := range all { // connections, prepared statements, pages
		if _, err := w.turn(ctx, p, w.env.size.box/5, none); err != nil {
			return err
		}
	}
	for round := range rounds {
		if err := w.empty(ctx); err != nil {
			return err
		}
		for i := range all {
			if round%2 == 1 {
				i = len(all) - 1 - i
			}
			rate, err := w.turn(ctx, all[i], w.env.size.box, none)
			if err != nil {
				return err
			}
			w.note(all[i].name(), all[i].note(), rate)
			w.env.progress("run %d of %d: %-17s %8s tx/s", round+1, rounds, all[i].name(), thousands(rate))
		}
	}
	return nil
}

// besideRelays measures the producers while relays drain what they write, and while none does.
func (w *writes) besideRelays(ctx context.Context, dsn string, p withOutbox) error {
	rounds := w.env.size.slowRuns
	for round := range rounds {
		alone := func() error {
			rate, err := w.turn(ctx, p, 2*w.env.size.box, none)
			if err == nil {
				w.note("no relay", "pgtx.Run as above, in turns with the next", rate)
				w.env.progress("run %d of %d: %-17s %8s tx/s", round+1, rounds, "no relay", thousands(rate))
			}
			return err
		}
		accompanied := func() error {
			rate, err := w.beside(ctx, dsn, p)
			if err == nil {
				w.note("four relays", "the same while four relays drain it, in this process and into nothing", rate)
				w.env.progress("run %d of %d: %-17s %8s tx/s", round+1, rounds, "four relays", thousands(rate))
			}
			return err
		}
		pair := []func() error{alone, accompanied}
		if round%2 == 1 {
			slices.Reverse(pair)
		}
		for _, measure := range pair {
			if err := errors.Join(w.empty(ctx), measure()); err != nil {
				return err
			}
		}
	}
	return nil
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

func (w *writes) note(name, note string, rate float64) {
	one := w.find(name)
	if one == nil {
		one = &rates{name: name, note: note}
		w.series = append(w.series, one)
	}
	one.perRun = append(one.perRun, rate)
}

func (w *writes) find(name string) *rates {
	i := slices.IndexFunc(w.series, func(r *rates) bool { return r.name == name })
	if i < 0 {
		return nil
	}
	return w.series[i]
}

func (w *writes) report(facts []string) *report {
	r := &report{
		title: fmt.Sprintf("transactions of one INSERT and one event of 1 KB on %d connections; far: %v more for each round trip", producers, roundTrip),
		facts: facts,
		unit:  "transactions/s",
	}
	of := func(name string) rates { return *w.find(name) }
	for _, one := range w.series {
		r.rates = append(r.rates, *one)
	}
	r.ratios = []ratios{
		ratio("with_outbox_vs_plain", of("with_outbox"), of("plain")),
		ratio("with_outbox_vs_plain_rtt", of("with_outbox, far"), of("plain, far")),
		ratio("caller_tx_vs_plain", of("caller_tx"), of("plain")),
		ratio("producers_with_relays_vs_without", of("four relays"), of("no relay")),
		ratio("oagudo_vs_plain", of("oagudo"), of("plain")),
	}
	return r
}
