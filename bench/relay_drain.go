package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/framework/devstack"
)

const (
	// batchSize is how many rows a relay takes at once, Millrace's and the peer's.
	batchSize = 1000
	// drainTimeout ends a run that does not get on.
	drainTimeout = 5 * time.Minute
)

// relayDrain measures how fast one relay empties a backlog, as after an outage of the broker: a restart's worst case,
// and the ceiling of what one relay forwards. The publisher does nothing, so that only the database's part counts.
//
// Each contestant gets the same events in a table of its own, written in the same transactions of 1,000, vacuumed and
// analyzed. The clock runs from the start of the relay until it has stopped after the last event, with everything it
// does to record what was published. Afterwards each run is checked: every event was published once and none is left.
var relayDrain = scenario{
	name:     "relay-drain",
	summary:  "drain a backlog from the outbox: Millrace's relay, FOR UPDATE SKIP LOCKED, a single SELECT",
	services: []devstack.Service{devstack.Postgres},
	full:     size{rows: 200_000, runs: 10},
	quick:    size{rows: 20_000, runs: 6},
	run:      runRelayDrain,
}

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
	// drain hands all events to the sink until ctx ends, which is when the sink has them all; then it records what was
	// published and returns. This is what the clock measures.
	drain(ctx context.Context, pool *pgxpool.Pool, schema string, to *sink) error
	// left counts the events that the table still holds as unpublished.
	left(ctx context.Context, pool *pgxpool.Pool, schema string) (int, error)
}

func runRelayDrain(ctx context.Context, env *environment) (*report, error) {
	// The relay and its peer take turns in going first; the SELECT stays between them.
	contestants := []drainer{millrace{}, singleSelect{}, skipLocked{}}
	measured := map[string]*rates{}
	for _, d := range contestants {
		measured[d.name()] = &rates{name: d.name(), note: d.note()}
	}
	facts, err := serverFacts(ctx, env.stack.PostgresDSN(), env.stack.Services()[0].Source)
	if err != nil {
		return nil, err
	}
	for run := range env.size.runs {
		events := newBacklog(env.size.rows)
		for _, d := range contestants {
			took, err := drainOnce(ctx, env.stack.PostgresDSN(), d, events)
			if err != nil {
				return nil, fmt.Errorf("%s, run %d: %w", d.name(), run+1, err)
			}
			rate := float64(len(events)) / took.Seconds()
			measured[d.name()].perRun = append(measured[d.name()].perRun, rate)
			env.progress("run %d of %d: %-13s %9s rows/s", run+1, env.size.runs, d.name(), thousands(rate))
		}
		slices.Reverse(contestants)
	}
	own, peer, bound := *measured["relay"], *measured["skip_locked"], *measured["single_select"]
	return &report{
		title: fmt.Sprintf("a backlog of %s events of 1 KB in %s keys, batches of %s, a publisher that does nothing; %d runs",
			thousands(float64(env.size.rows)), thousands(keys), thousands(batchSize), env.size.runs),
		facts:  facts,
		rates:  []rates{own, peer, bound},
		ratios: []ratios{against(own, peer), against(own, bound)},
	}, nil
}

// drainOnce fills a table, measures how long the contestant takes to drain it, and checks that it did.
func drainOnce(ctx context.Context, dsn string, d drainer, events []event) (took time.Duration, err error) {
	err = withSchema(ctx, dsn, func(pool *pgxpool.Pool, schema string) error {
		if err := d.create(ctx, pool, schema); err != nil {
			return fmt.Errorf("create tables: %w", err)
		}
		for part := range slices.Chunk(events, 1000) {
			if err := d.write(ctx, pool, schema, part); err != nil {
				return fmt.Errorf("write the backlog: %w", err)
			}
		}
		if err := settle(ctx, pool, d.table(schema)); err != nil {
			return err
		}
		drainCtx, cancel := context.WithTimeout(ctx, drainTimeout)
		defer cancel()
		to := newSink(len(events), cancel)
		runtime.GC() // nobody pays for the garbage of the load

		began := time.Now()
		err := d.drain(drainCtx, pool, schema, to)
		took = time.Since(began)

		if err := errors.Join(err, ctx.Err()); err != nil {
			return fmt.Errorf("drain: %w", err)
		}
		if err := to.check(events); err != nil {
			return err
		}
		left, err := d.left(ctx, pool, schema)
		if err == nil && left != 0 {
			err = fmt.Errorf("%d published events are not recorded as such", left)
		}
		return err
	})
	return took, err
}
