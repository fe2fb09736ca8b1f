package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/middleware/claim"
)

// slowFlush is what a disk takes longer to keep a commit.
const slowFlush = time.Millisecond

// near compares ways of consuming, with the server beside them.
func (c *claiming) near(ctx context.Context) error {
	few, err := openPool(ctx, c.env.dsn, producers, 0)
	if err != nil {
		return err
	}
	defer few.Close()
	many, err := openPool(ctx, c.env.dsn, manyWorkers, 0)
	if err != nil {
		return err
	}
	defer many.Close()
	all := []entrant{c.bare("bare", few)}
	for _, at := range []struct {
		pool    *pgxpool.Pool
		workers int
		suffix  string
	}{{few, producers, ""}, {many, manyWorkers, ", 32"}} {
		flow := flow{inFlight: at.workers}
		all = append(all,
			c.claim("exec"+at.suffix, "the claim, and a handler that uses tx.Exec", at.pool, flow, c.accounts.exec, claim.Config{}),
			c.claim("queue"+at.suffix, "the claim, and a handler that uses pgtx.Queue", at.pool, flow, c.accounts.queue, claim.Config{}),
			c.five("five"+at.suffix, at.pool, flow),
		)
	}
	lazy, flow := claim.Config{Lazy: true}, flow{inFlight: producers}
	all = append(all,
		c.claim("lazy exec", "the lazy claim, and a handler that uses tx.Exec", few, flow, c.accounts.exec, lazy),
		c.claim("lazy queue", "the lazy claim, and a handler that uses pgtx.Queue", few, flow, c.accounts.queue, lazy),
	)
	all = append(all, c.grouped("group", fmt.Sprintf("the claim for up to %d messages in one transaction, tx.Exec", groupSize), few))
	return c.inTurns(ctx, c.env.size.runs, all)
}

func (c *claiming) grouped(name, note string, pool *pgxpool.Pool) entrant {
	return c.claim(name, note, pool, flow{inFlight: 2 * producers * groupSize}, c.accounts.exec, claim.Config{Group: groupSize})
}

// far compares them with the server in another place of the data centre.
func (c *claiming) far(ctx context.Context) error {
	pool, err := openPool(ctx, c.env.dsn, producers, roundTrip)
	if err != nil {
		return err
	}
	defer pool.Close()
	slow, err := openPool(ctx, c.env.dsn, producers, roundTrip, flushSlowly)
	if err != nil {
		return err
	}
	defer slow.Close()
	flow, lazy := flow{inFlight: producers}, claim.Config{Lazy: true}
	return c.inTurns(ctx, c.env.size.runs, []entrant{
		c.bare("bare, far", pool),
		c.claim("queue, far", "", pool, flow, c.accounts.queue, claim.Config{}),
		c.claim("lazy exec, far", "", pool, flow, c.accounts.exec, lazy),
		c.claim("lazy queue, far", "", pool, flow, c.accounts.queue, lazy),
		c.five("five, far", pool, flow),
		c.bare("bare, far, slow disk", slow),
		c.claim("lazy exec, far, slow disk", "", slow, flow, c.accounts.exec, lazy),
		c.claim("lazy queue, far, slow disk", "", slow, flow, c.accounts.queue, lazy),
	})
}

// flushSlowly makes each flush of the connections' commits take slowFlush longer.
func flushSlowly(cfg *pgxpool.Config) {
	cfg.ConnConfig.RuntimeParams["commit_delay"] = strconv.Itoa(int(slowFlush.Microseconds()))
	cfg.ConnConfig.RuntimeParams["commit_siblings"] = "0" // also a commit that is alone
}

// slowDisk compares them where a commit waits a millisecond for the disk, in which others may join it.
func (c *claiming) slowDisk(ctx context.Context) error {
	pool, err := openPool(ctx, c.env.dsn, producers, 0, flushSlowly)
	if err != nil {
		return err
	}
	defer pool.Close()
	flow, oneByOne := flow{inFlight: producers}, flow{inFlight: unflushed, ordered: true}
	return c.inTurns(ctx, c.env.size.slowRuns, []entrant{
		c.bare("bare, slow disk", pool),
		c.claim("exec, slow disk", "", pool, flow, c.accounts.exec, claim.Config{}),
		c.claim("queue, slow disk", "", pool, flow, c.accounts.queue, claim.Config{}),
		c.grouped("group, slow disk", "", pool),
		c.claim("sync, slow disk", "", pool, oneByOne, c.accounts.queue, claim.Config{}),
		c.claim("deferred, slow disk", "", pool, oneByOne, c.accounts.queue, claim.Config{Deferred: true}),
	})
}

// ordered compares ways of handling one event after the other.
func (c *claiming) ordered(ctx context.Context) error {
	pool, err := openPool(ctx, c.env.dsn, producers, 0)
	if err != nil {
		return err
	}
	defer pool.Close()
	oneByOne := flow{inFlight: unflushed, ordered: true}
	return c.inTurns(ctx, c.env.size.runs, []entrant{
		c.claim("sync", "the claim, one event after the other, pgtx.Queue", pool, oneByOne, c.accounts.queue, claim.Config{}),
		c.claim("deferred", "the same with the deferred ack: the next event begins at Delivery.Handled", pool, oneByOne, c.accounts.queue,
			claim.Config{Deferred: true}),
	})
}

// duplicates compares the claim, which gives a worker back at once, with a worker that waits.
func (c *claiming) duplicates(ctx context.Context) error {
	pool, err := openPool(ctx, c.env.dsn, duplicateWorkers, 0)
	if err != nil {
		return err
	}
	defer pool.Close()
	peer := blocking{pool, c.schema}
	twice := flow{inFlight: duplicateWorkers, twice: true}
	takesTime := slow(c.accounts.queue)
	return c.inTurns(ctx, c.env.size.slowRuns, []entrant{
		c.entrant(consumer{
			name: "fail fast", note: fmt.Sprintf("the claim, %d workers, a handler of %v, every second event delivered twice at once", duplicateWorkers, slowHandler),
			flow: twice, guard: claimed(pool, c.schema, claim.Config{}), handler: takesTime, record: processed(c.schema), nacks: true,
		}, comebacks, 2*c.env.size.box),
		c.entrant(consumer{
			name: "blocking", note: "the same, where the second delivery waits on the unique index",
			flow: twice, guard: peer.guard, handler: takesTime, record: peer.table(),
		}, comebacks, 2*c.env.size.box),
	})
}

// inMemory measures Watermill's Deduplicator, and what it and the claim lose of events whose first attempt fails.
func (c *claiming) inMemory(ctx context.Context) error {
	pool, err := openPool(ctx, c.env.dsn, producers, 0)
	if err != nil {
		return err
	}
	defer pool.Close()
	peer := consumer{
		name: "deduplicator", note: "Watermill's Deduplicator, in memory, and a handler that commits its statement by itself",
		flow: flow{inFlight: producers}, guard: deduplicated, handler: c.accounts.autocommit(pool),
	}
	if err := c.inTurns(ctx, c.env.size.slowRuns, []entrant{
		c.claim("exec beside it", "", pool, peer.flow, c.accounts.exec, claim.Config{}),
		c.entrant(peer, c.warmUp(), c.env.size.box),
	}); err != nil {
		return err
	}
	own := consumer{name: "claim", flow: peer.flow, guard: claimed(pool, c.schema, claim.Config{}), handler: c.accounts.exec}
	for _, who := range []consumer{own, peer} {
		who.handler, who.nacks = failing(failOneIn, who.handler), true
		who.events = c.env.size.rows
		booked, done, err := c.counted(ctx, who, 0, 0)
		if err != nil {
			return err
		}
		c.lost = append(c.lost, ratios{
			name: who.name + "_lost_percent", unit: fmt.Sprintf("%% of the acked events, one in %d of which failed once", failOneIn),
			perRun: []float64{100 * float64(done.acked-booked) / float64(done.acked)},
		})
	}
	return nil
}

// grown compares a record that holds what a service has processed in days with a new one.
func (c *claiming) grown(ctx context.Context) error {
	pool, err := openPool(ctx, c.env.dsn, producers, 0)
	if err != nil {
		return err
	}
	defer pool.Close()
	full := consumer{
		name: "grown", note: fmt.Sprintf("the claim over a record of %s events, exec", thousands(float64(c.env.size.bigRows))),
		flow: flow{inFlight: producers}, guard: claimed(pool, c.grownSchema(), claim.Config{}), handler: c.accounts.exec,
		record: processed(c.grownSchema()),
	}
	if err := c.fill(ctx, full, c.env.size.bigRows); err != nil {
		return fmt.Errorf("fill the record: %w", err)
	}
	return c.inTurns(ctx, c.env.size.slowRuns, []entrant{
		c.claim("new", "the same over an empty record", pool, full.flow, c.accounts.exec, claim.Config{}),
		c.entrant(full, c.warmUp(), c.env.size.box),
	})
}
