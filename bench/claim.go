package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/middleware/claim"
)

const (
	// manyWorkers is the larger number of connections that handlers use at once; the smaller is that of the producers.
	manyWorkers = 4 * producers
	// duplicateWorkers handle events of which every second is delivered twice.
	duplicateWorkers = 2 * producers
	// comebacks is the warm-up where contended messages are delivered again: longer than their delay.
	comebacks = 300 * time.Millisecond
	// groupSize is the largest number of messages that may share a transaction.
	groupSize = 50
	// unflushed is how many messages an ordered consumer may have handled and not acked.
	unflushed = 256
	// failOneIn is how many events there are for each that fails at first.
	failOneIn = 10
)

// claims measures what the claim costs the consumer: a Watermill router, the middleware, and a handler of one UPDATE, over
// a subscriber that costs nothing. The unit is the smallest commit that there is, one row in one statement, eight
// at a time and without a router: what the server can do at most. Peers run in the same router with the same handler.
//
// Contestants are measured in short turns that follow each other directly, each round in the other order; the tables are
// emptied between rounds. Rates are those of a window that begins after a warm-up and ends before the last event: a
// router's start and stop are not in it.
//
// Each run is checked: the accounts were booked to as often as events were acked, and each left its record.
var claims = scenario{
	name:    "claim",
	summary: "handle events of one UPDATE behind a router: the claim to bare commits, to the article's five statements and to waiting on the unique index",
	full:    size{runs: 12, slowRuns: 10, box: 2 * time.Second, rows: 2000, bigRows: 3_000_000},
	quick:   size{runs: 7, slowRuns: 4, box: 300 * time.Millisecond, rows: 500, bigRows: 3_000_000},
	run:     runClaims,
}

// claiming is one run of the scenario.
type claiming struct {
	rounds
	pool     *pgxpool.Pool // for what is not measured
	schema   string
	accounts accounts
	lost     []ratios // events that had no effect
}

func runClaims(ctx context.Context, env *environment) (r *report, err error) {
	facts, err := serverFacts(ctx, env.dsn, env.source)
	if err != nil {
		return nil, err
	}
	err = withSchema(ctx, env.dsn, func(pool *pgxpool.Pool, schema string) (err error) {
		c := &claiming{
			rounds: rounds{env: env, unit: "events/s"}, pool: pool, schema: schema, accounts: accounts{schema},
		}
		defer func() { err = errors.Join(err, dropSchema(ctx, pool, c.grownSchema())) }()
		if err := c.create(ctx); err != nil {
			return fmt.Errorf("create tables: %w", err)
		}
		for _, part := range claimParts {
			if err := part(c, ctx); err != nil {
				return err
			}
		}
		r = c.report(facts)
		return nil
	})
	return r, err
}

// claimParts are measured one after the other.
var claimParts = []func(*claiming, context.Context) error{
	(*claiming).near, (*claiming).far, (*claiming).slowDisk, (*claiming).ordered, (*claiming).duplicates, (*claiming).inMemory, (*claiming).grown,
}

func (c *claiming) grownSchema() string { return c.schema + "_grown" }

func (c *claiming) create(ctx context.Context) error {
	return errors.Join(
		claim.Migrate(ctx, c.pool, c.schema), claim.Migrate(ctx, c.pool, c.grownSchema()), c.accounts.create(ctx, c.pool),
		bareCommit{c.schema}.create(ctx, c.pool), fiveStatements{c.pool, c.schema}.create(ctx), blocking{c.pool, c.schema}.create(ctx),
	)
}

// empty truncates what grows, so that no contestant pays for what another has left, and prunes the accounts' dead rows.
func (c *claiming) empty(ctx context.Context) error {
	tables := processed(c.schema) + `, ` + bareCommit{c.schema}.table() + `, ` +
		fiveStatements{c.pool, c.schema}.table() + `, ` + blocking{c.pool, c.schema}.table()
	if _, err := c.pool.Exec(ctx, `truncate `+tables); err != nil {
		return fmt.Errorf("empty the tables: %w", err)
	}
	return settle(ctx, c.pool, c.accounts.table())
}

func processed(schema string) string { return schema + ".processed" }

// inTurns measures the entrants in rounds, from empty tables.
func (c *claiming) inTurns(ctx context.Context, n int, all []entrant) error {
	return c.run(ctx, n, c.empty, all)
}

// warmUp is what is not measured at the beginning of a turn.
func (c *claiming) warmUp() time.Duration { return min(c.env.size.box/4, 250*time.Millisecond) }

// bare is the unit of measure.
func (c *claiming) bare(name string, pool *pgxpool.Pool) entrant {
	b := bareCommit{c.schema}
	return entrant{name, fmt.Sprintf("one row in one statement that commits by itself, %d at a time, no router", producers), func(ctx context.Context) (float64, error) {
		commit := func(ctx context.Context, _ int) error { return b.commit(ctx, pool) }
		if _, _, err := repeat(ctx, producers, c.warmUp(), commit); err != nil {
			return 0, err
		}
		before, err := c.rows(ctx, b.table())
		if err != nil {
			return 0, err
		}
		commits, rate, err := repeat(ctx, producers, c.env.size.box, commit)
		if err != nil {
			return 0, err
		}
		after, err := c.rows(ctx, b.table())
		if err == nil && after-before != int64(commits) {
			err = fmt.Errorf("%s: %d commits left %d rows", name, commits, after-before)
		}
		return rate, err
	}}
}

// claim is the claim with its record in the emptied table.
func (c *claiming) claim(name, note string, pool *pgxpool.Pool, f flow, h message.NoPublishHandlerFunc, cfg claim.Config) entrant {
	return c.entrant(consumer{
		name: name, note: note, flow: f, guard: claimed(pool, c.schema, cfg), handler: h, record: processed(c.schema),
	}, c.warmUp(), c.env.size.box)
}

func (c *claiming) five(name string, pool *pgxpool.Pool, f flow) entrant {
	peer := fiveStatements{pool, c.schema}
	return c.entrant(consumer{
		name: name, note: "BEGIN; pg_try_advisory_xact_lock; SELECT; INSERT 'PROCESSING'; the handler's UPDATE; UPDATE 'COMPLETED'; COMMIT",
		flow: f, guard: peer.guard, handler: c.accounts.exec, record: peer.table(),
	}, c.warmUp(), c.env.size.box)
}

// entrant measures the consumer, and checks that each event that was acked has had its effect.
func (c *claiming) entrant(who consumer, warmUp, lasts time.Duration) entrant {
	return entrant{who.name, who.note, func(ctx context.Context) (float64, error) {
		booked, done, err := c.counted(ctx, who, warmUp, lasts)
		if err == nil && booked != done.acked {
			err = fmt.Errorf("%s: %d events were acked and %d had their effect", who.name, done.acked, booked)
		}
		return done.rate, err
	}}
}

// counted runs the consumer and counts the effects. It checks that each event that had one has left its record.
func (c *claiming) counted(ctx context.Context, who consumer, warmUp, lasts time.Duration) (booked int64, done consumed, err error) {
	count := func() (effects, records int64, err error) {
		if effects, err = c.accounts.booked(ctx, c.pool); err == nil && who.record != "" {
			records, err = c.rows(ctx, who.record)
		}
		return effects, records, err
	}
	effects, records, err := count()
	if err != nil {
		return 0, done, err
	}
	if done, err = who.consume(ctx, warmUp, lasts); err != nil {
		return 0, done, err
	}
	effectsAfter, recordsAfter, err := count()
	if err != nil {
		return 0, done, err
	}
	booked = effectsAfter - effects
	if left := recordsAfter - records; who.record != "" && left != booked {
		return 0, done, fmt.Errorf("%s: %d effects left %d records", who.name, booked, left)
	}
	return booked, done, nil
}

func (c *claiming) rows(ctx context.Context, table string) (n int64, err error) {
	err = c.pool.QueryRow(ctx, `select count(*) from `+table).Scan(&n)
	return n, err
}

func (c *claiming) report(facts []string) *report {
	r := &report{
		title: fmt.Sprintf("events whose handler makes one UPDATE, %d at a time where nothing else is said; far: %v more for each round trip; slow disk: %v more for each flush", producers, roundTrip, slowFlush),
		facts: facts,
		unit:  "events/s",
		rates: c.all(),
	}
	of := func(name, own, other string) ratios { return ratio(name, c.of(own), c.of(other)) }
	r.ratios = append([]ratios{
		of("exec_vs_bare_commit", "exec", "bare"),
		of("exec_vs_bare_commit_32", "exec, 32", "bare"),
		of("queue_vs_bare_commit", "queue", "bare"),
		of("queue_vs_bare_commit_32", "queue, 32", "bare"),
		of("queue_vs_bare_commit_rtt", "queue, far", "bare, far"),
		of("lazy_exec_vs_bare_commit", "lazy exec", "bare"),
		of("lazy_queue_vs_bare_commit", "lazy queue", "bare"),
		of("lazy_exec_vs_bare_commit_rtt", "lazy exec, far", "bare, far"),
		of("lazy_queue_vs_bare_commit_rtt", "lazy queue, far", "bare, far"),
		of("lazy_exec_vs_bare_commit_rtt_slow_disk", "lazy exec, far, slow disk", "bare, far, slow disk"),
		of("lazy_queue_vs_bare_commit_rtt_slow_disk", "lazy queue, far, slow disk", "bare, far, slow disk"),
		of("lazy_queue_vs_five_statements_rtt", "lazy queue, far", "five, far"),
		of("exec_vs_five_statements", "exec", "five"),
		of("exec_vs_five_statements_32", "exec, 32", "five, 32"),
		of("queue_vs_five_statements", "queue", "five"),
		of("queue_vs_five_statements_32", "queue, 32", "five, 32"),
		of("group_vs_bare_commit", "group", "bare"),
		of("deferred_vs_sync", "deferred", "sync"),
		of("exec_vs_bare_commit_slow_disk", "exec, slow disk", "bare, slow disk"),
		of("queue_vs_bare_commit_slow_disk", "queue, slow disk", "bare, slow disk"),
		of("group_vs_bare_commit_slow_disk", "group, slow disk", "bare, slow disk"),
		of("deferred_vs_sync_slow_disk", "deferred, slow disk", "sync, slow disk"),
		of("fail_fast_vs_blocking", "fail fast", "blocking"),
		of("processed_3m_vs_empty", "grown", "new"),
		of("deduplicator_vs_exec", "deduplicator", "exec beside it"),
	}, c.lost...)
	return r
}
