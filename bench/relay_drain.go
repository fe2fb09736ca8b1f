package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

const (
	// smallRows is the backlog that a relay meets every day, against which a grown one is compared.
	smallRows = 10_000
	// brokerRequest is what a broker takes to acknowledge a request, one message or a thousand.
	brokerRequest = 10 * time.Millisecond
	// brokerBox is shorter than the other time boxes: a slow broker's rate shows at once.
	brokerBox = time.Second
)

// relayDrain measures how fast one relay empties a backlog, as after an outage of the broker: a restart's worst case,
// and the ceiling of what one relay forwards. Where nothing else is said the publisher does nothing, so that only the
// database's part counts.
//
// Each contestant gets the same events in a table of its own, written in the same transactions of 1,000, vacuumed and
// analyzed. The clock runs from the start of the relay until it has stopped after the last event, with everything it
// does to record what was published. Afterwards each run is checked: every event was published once and none is left.
// A time box ends a run of a slow peer; then its rate is that until its last event in the box, so that a batch which the
// box cuts off does not count against it, and it was checked that it published no event twice.
var relayDrain = scenario{
	name:    "relay-drain",
	summary: "drain a backlog from the outbox: Millrace's relay, the articles' SKIP LOCKED, watermill-sql, its forwarder, oagudo/outbox",
	full:    size{rows: 200_000, runs: 10, slowRuns: 10, bigRows: 200_000, hugeRows: 1_000_000, box: 30 * time.Second},
	quick:   size{rows: 100_000, runs: 3, slowRuns: 1, bigRows: 200_000, box: 2 * time.Second, budget: 42 * time.Second},
	run:     runRelayDrain,
}

func runRelayDrain(ctx context.Context, env *environment) (r *report, err error) {
	facts, err := serverFacts(ctx, env.dsn, env.source)
	if err != nil {
		return nil, err
	}
	s := &drains{
		began: time.Now(), env: env, dsn: env.dsn, series: map[string]*rates{},
		rows: newBacklog(env.size.rows), small: newBacklog(min(smallRows, env.size.rows)),
		big: newBacklog(env.size.bigRows), dead: newBacklog(env.size.bigRows / 4), huge: newBacklog(env.size.hugeRows),
	}
	err = withSchema(ctx, s.dsn, func(pool *pgxpool.Pool, schema string) (err error) {
		s.depot.prefix = schema
		defer func() { err = errors.Join(err, s.depot.drop(ctx, pool)) }()
		if err := s.stock(ctx, pool); err != nil {
			return err
		}
		return s.measure(ctx)
	})
	if err != nil {
		return nil, err
	}
	return s.report(facts), nil
}

// drains is one run of the scenario: what it drains and what it has measured.
type drains struct {
	began  time.Time
	env    *environment
	dsn    string
	depot  depot
	rows   []event // of most runs
	small  []event
	big    []event
	dead   []event // of the articles' design
	huge   []event // empty: not measured
	series map[string]*rates
	cost   ratios
}

// stock writes once what several runs drain.
func (s *drains) stock(ctx context.Context, pool *pgxpool.Pool) error {
	s.env.progress("writing the backlogs")
	began := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2)
	keep := func(d drainer, events []event) {
		if len(events) > 0 {
			write := s.depot.keep(d, events)
			group.Go(func() error { return write(ctx, pool) })
		}
	}
	keep(millrace{}, s.huge)
	keep(fastWatermillSQL, s.huge)
	keep(millrace{}, s.big)
	keep(fastWatermillSQL, s.big)
	keep(skipLocked{}, s.dead)
	keep(millrace{}, s.rows)
	keep(skipLocked{}, s.rows)
	keep(watermillForwarder{fastWatermillSQL}, s.big)
	keep(oagudo{}, s.rows)
	err := group.Wait()
	s.env.progress("written in %.1f s", time.Since(began).Seconds())
	return err
}

// measure runs the trials in rounds; what is compared stands side by side in one.
func (s *drains) measure(ctx context.Context) error {
	if err := s.addDeadTopic(ctx, s.env.size.runs); err != nil {
		return fmt.Errorf("beside a dead topic: %w", err)
	}
	var light time.Duration // what a round takes without the slow trials
	for round := range s.env.size.runs {
		if budget := s.env.size.budget; round > 0 && budget > 0 && time.Since(s.began)+light > budget {
			s.env.progress("no time is left for another run: this machine is slow or busy")
			return nil
		}
		s.env.progress("run %d of %d", round+1, s.env.size.runs)
		began := time.Now()
		err := s.addGroup(ctx, round, s.core())
		if err == nil {
			err = s.addCost(ctx)
		}
		light = time.Since(began)
		if err == nil && round < s.env.size.slowRuns {
			err = errors.Join(s.addGroup(ctx, round, s.grown()), s.addGroup(ctx, round, s.brokers()), s.addGroup(ctx, round, s.peers()))
		}
		if err != nil {
			return fmt.Errorf("run %d: %w", round+1, err)
		}
	}
	return nil
}

// addGroup runs the trials, in every other round the last one first.
func (s *drains) addGroup(ctx context.Context, round int, group []trial) error {
	if round%2 == 1 {
		slices.Reverse(group)
	}
	for _, t := range group {
		if err := s.add(ctx, t); err != nil {
			return err
		}
	}
	return nil
}
