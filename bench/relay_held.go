package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/outbox"
)

const (
	ofRelayHeldLive = "relay, running, snapshot held"
	heldP99         = "held_5m_p99_ms"
	freeP99         = "free_p99_ms"
)

// relayHeld measures what a stranger's snapshot costs a running relay that has published 5,000,000 events since. Their rows
// are dead, and stay in the table and its index. Beside it stands the same relay in a database of its own, where nobody
// holds a snapshot. The two take turns in forwarding a backlog that is committed at once, and events at an even pace.
var relayHeld = scenario{
	name:    "relay-held",
	summary: "what 5,000,000 dead rows, which a stranger's snapshot keeps, cost a running relay",
	full:    size{rows: 200_000, runs: 10, slowRuns: 5, bigRows: 5_000_000, box: 30 * time.Second},
	quick:   size{rows: 100_000, runs: 3, slowRuns: 1, bigRows: 5_000_000, box: 8 * time.Second},
	run:     runRelayHeld,
}

func runRelayHeld(ctx context.Context, env *environment) (r *report, err error) {
	facts, err := serverFacts(ctx, env.dsn, env.source)
	if err != nil {
		return nil, err
	}
	err = withSchema(ctx, env.dsn, func(pool *pgxpool.Pool, schema string) error {
		return withDatabase(ctx, env.dsn, pool, schema, func(ctx context.Context, dsn string) error {
			return withSchema(ctx, dsn, func(other *pgxpool.Pool, schemaThere string) error {
				events := newBacklog(env.size.rows)
				free, err := newLive(ctx, env.dsn, pool, schema, events)
				if err != nil {
					return err
				}
				held, err := newLive(ctx, dsn, other, schemaThere, events)
				if err != nil {
					return err
				}
				release, err := holdSnapshot(ctx, dsn)
				if err != nil {
					return fmt.Errorf("hold a snapshot: %w", err)
				}
				defer release()
				env.progress("making %s dead rows", thousands(float64(env.size.bigRows)))
				if err := held.bury(ctx, env.size.bigRows); err != nil {
					return fmt.Errorf("make dead rows: %w", err)
				}
				r, err = compareHeld(ctx, env, free, held)
				return err
			})
		})
	})
	if r != nil {
		r.facts = facts
	}
	return r, err
}

func compareHeld(ctx context.Context, env *environment, free, held live) (*report, error) {
	r := rounds{env: env, unit: "rows/s"}
	settled := func(ctx context.Context) error { return errors.Join(free.settle(ctx), held.settle(ctx)) }
	err := r.run(ctx, env.size.runs, settled, []entrant{
		{name: ofRelayLive, note: "one outbox.Relay with its defaults that runs when the backlog is committed, from its first event to its last", measure: free.turn},
		{name: ofRelayHeldLive, note: "the same over the dead rows", measure: held.turn},
	})
	if err != nil {
		return nil, err
	}
	latencies := map[string]*latency{}
	p99 := func(name string, l live) entrant {
		latencies[name] = &latency{}
		return entrant{name: name, measure: func(ctx context.Context) (float64, error) { return l.latency(ctx, latencies[name], env.size.box) }}
	}
	paced := rounds{env: env, unit: "ms"}
	if err := paced.run(ctx, env.size.slowRuns, nil, []entrant{p99(freeP99, free), p99(heldP99, held)}); err != nil {
		return nil, err
	}
	result := &report{
		title: fmt.Sprintf("a running relay over %s dead rows: a backlog of %s events of 1 KB, and %d events a second for %v",
			thousands(float64(env.size.bigRows)), thousands(float64(env.size.rows)), pacePerSecond, env.size.box),
		unit: "rows/s", rates: r.all(),
		ratios: []ratios{ratio("held_xmin_5m_vs_free", r.of(ofRelayHeldLive), r.of(ofRelayLive))},
	}
	for _, name := range []string{heldP99, freeP99} {
		result.ratios = append(result.ratios, ratios{name: name, unit: "ms", perRun: paced.of(name).perRun})
	}
	return result, nil
}

// newLive makes the tables, and keeps the events beside them.
func newLive(ctx context.Context, dsn string, pool *pgxpool.Pool, schema string, events []event) (live, error) {
	l := live{dsn: dsn, schema: schema, pool: pool, kept: schema + ".kept", events: events}
	err := errors.Join(outbox.Migrate(ctx, pool, schema), orders{schema}.create(ctx, pool))
	if err == nil {
		err = writeAll(ctx, pool, millrace{}, schema, events)
	}
	if err == nil {
		_, err = pool.Exec(ctx, `create table `+l.kept+` as select * from `+schema+`.outbox order by seq; truncate `+schema+`.outbox`)
	}
	if err != nil {
		return l, fmt.Errorf("write the backlog: %w", err)
	}
	return l, nil
}

// bury makes dead rows: as small as they get, since no relay reads them.
func (l live) bury(ctx context.Context, rows int) error {
	_, err := l.pool.Exec(ctx, fmt.Sprintf(`insert into %[1]s.outbox (shard, seq, event_id, topic, key, headers, payload)
		select n %% 16, %[1]s.outbox_next((n %% 16)::smallint), n::text, '', '', '{}', '' from generate_series(1, %[2]d) as n;
		delete from %[1]s.outbox`, l.schema, rows))
	return err
}

// latency is the 99th percentile, in milliseconds, of the time from commit to publish.
func (l live) latency(ctx context.Context, of *latency, lasts time.Duration) (p99 float64, err error) {
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: l.schema})
	if err != nil {
		return 0, err
	}
	producer := withOutbox{l.pool, orders{l.schema}, publisher, "pgtx.Run"}
	of.produce = func(ctx context.Context, lasts time.Duration, committed *times) error {
		return pace(ctx, lasts, pacePerSecond, producer.commit, func(id string, at time.Time) { committed.note(id, at.UnixNano()) })
	}
	if err := of.measure(ctx, l.dsn, l.schema, producer, lasts); err != nil {
		return 0, err
	}
	return of.p99[len(of.p99)-1], nil
}

// withDatabase calls fn with another database of the server, and drops it afterwards.
func withDatabase(ctx context.Context, dsn string, pool *pgxpool.Pool, name string, fn func(ctx context.Context, dsn string) error) (err error) {
	if _, err := pool.Exec(ctx, `create database `+name); err != nil {
		return fmt.Errorf("create a database: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
		defer cancel()
		_, dropped := pool.Exec(ctx, `drop database `+name+` with (force)`)
		err = errors.Join(err, dropped)
	}()
	there, err := url.Parse(dsn)
	if err != nil || there.Scheme == "" {
		return fn(ctx, dsn+" dbname="+name) // words, of which the last one counts
	}
	there.Path = "/" + name
	return fn(ctx, there.String())
}
