package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/outbox"
)

// relayWAL compares a relay that reads PostgreSQL's log with relays that read the table. The writer is one of which nobody tells the relay,
// at an even 500 events a second; the relay that polls does so every 10 ms. The processor time is that of this process and of the server.
// The drain is of one transaction, from its commit until all its rows are published and deleted. At the end it compares producers that put
// their events into the log with those that have none.
//
// Each run is checked: every event was published.
var relayWAL = scenario{
	name:    "relay-wal",
	summary: "a relay that reads the log, and one that polls: from commit to publish, a drain, and the processor time; producers with events in the log, and with none",
	full:    size{runs: 10, rows: 15_000, box: 10 * time.Second},
	quick:   size{runs: 3, rows: 15_000, box: 3 * time.Second},
	run:     runRelayWAL,
}

// fastPoll is the poll that finds events about as soon as the log shows them.
const fastPoll = 10 * time.Millisecond

func runRelayWAL(ctx context.Context, env *environment) (r *report, err error) {
	facts, err := serverFacts(ctx, env.dsn, env.source)
	if err != nil {
		return nil, err
	}
	err = withSchema(ctx, env.dsn, func(pool *pgxpool.Pool, schema string) (err error) {
		defer func() { err = errors.Join(err, dropSlot(ctx, pool, schema)) }()
		business := orders{schema}
		if err := errors.Join(outbox.Migrate(ctx, pool, schema), business.create(ctx, pool)); err != nil {
			return fmt.Errorf("create tables: %w", err)
		}
		publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
		if err != nil {
			return err
		}
		run := withOutbox{pool, business, publisher, "pgtx.Run"}
		s := &sources{env: env, schema: schema, pool: pool, probe: run}
		produce := func(ctx context.Context, lasts time.Duration, committed *times) error {
			return pace(ctx, lasts, pacePerSecond, callerTx{run}.commit, func(id string, at time.Time) { committed.note(id, at.UnixNano()) })
		}
		log := func(cfg *outbox.RelayConfig) { cfg.Source, cfg.PollOnly = outbox.WAL, true }
		poll := func(cfg *outbox.RelayConfig) { cfg.PollInterval, cfg.PollOnly = fastPoll, true }
		s.ways = []*sourceWay{
			{latency: latency{name: "log", produce: produce, options: []func(*outbox.RelayConfig){log}}},
			{latency: latency{name: "poll", produce: produce, options: []func(*outbox.RelayConfig){poll}}},
		}
		for round := range env.size.runs {
			for _, way := range s.ways {
				if err := s.measure(ctx, way); err != nil {
					return fmt.Errorf("%s, run %d: %w", way.name, round+1, err)
				}
				last := func(all []float64) float64 { return all[len(all)-1] }
				env.progress("run %d of %d: %-4s p50 %6.2f ms, p99 %6.2f ms, %4.0f ms of processor time a second, drain %7.0f rows/s", round+1, env.size.runs, way.name,
					last(way.p50), last(way.p99), 1000*last(way.cpu), last(way.drained))
			}
			slices.Reverse(s.ways)
		}
		w, err := s.logWrites(ctx)
		if err != nil {
			return fmt.Errorf("events in the log: %w", err)
		}
		r = s.report(facts)
		r.rates = append(r.rates, w.all()...)
		r.ratios = append(r.ratios, ratio("log_vs_plain", w.of("event in the log"), w.of("no event")), ratio("rows_vs_plain", w.of("event as a row"), w.of("no event")))
		return nil
	})
	return r, err
}

// dropSlot drops what relays have made to read the log.
func dropSlot(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	_, err := pool.Exec(ctx, `select pg_drop_replication_slot(slot_name) from pg_replication_slots where starts_with(slot_name, $1)`, schema+"_")
	_, dropped := pool.Exec(ctx, `drop publication if exists `+schema+`_outbox, `+schema+`_outbox_landing`)
	return errors.Join(err, dropped)
}

// sources is one run of the scenario.
type sources struct {
	env    *environment
	schema string
	pool   *pgxpool.Pool
	probe  withOutbox
	ways   []*sourceWay
}

// sourceWay is one way in which a relay finds events, and what was measured of it.
type sourceWay struct {
	latency
	cpu     []float64 // seconds of processor time in a second
	drained []float64 // rows a second
	perRow  []float64 // microseconds of processor time for a drained row
}

func (s *sources) measure(ctx context.Context, way *sourceWay) error {
	before, err := cpuTime(ctx, s.pool)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := way.measure(ctx, s.env.dsn, s.schema, s.probe, s.env.size.box); err != nil {
		return err
	}
	after, err := cpuTime(ctx, s.pool)
	if err != nil {
		return err
	}
	way.cpu = append(way.cpu, (after-before).Seconds()/time.Since(began).Seconds())
	rate, err := s.drain(ctx, way)
	way.drained = append(way.drained, rate)
	return err
}

// drain commits the rows at once, for a relay that waits for them, and returns how many it publishes and deletes in a second.
func (s *sources) drain(ctx context.Context, way *sourceWay) (rate float64, err error) {
	to := &counter{}
	stop, err := startRelays(ctx, s.env.dsn, s.schema, to, 1, way.options...)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := settleRelays(ctx, s.probe, to); err != nil {
		return 0, err
	}
	published, rows := to.count(), s.env.size.rows
	_, err = s.pool.Exec(ctx, `insert into `+s.schema+`.outbox (shard, seq, event_id, topic, key, headers, payload)
		select n % 16, `+s.schema+`.outbox_next((n % 16)::smallint), gen_random_uuid(), $1, (n % 1000)::text, '{}', convert_to(repeat('x', 1000), 'UTF8')
		from generate_series(1, $2::int) n`, topic, rows)
	if err != nil {
		return 0, err
	}
	before, err := cpuTime(ctx, s.pool)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	for deadline := began.Add(recordTimeout); ; time.Sleep(time.Millisecond) {
		left := true
		if to.count() >= published+rows {
			if err := s.pool.QueryRow(ctx, `select exists (select from `+s.schema+`.outbox)`).Scan(&left); err != nil {
				return 0, err
			}
		}
		switch {
		case !left:
			took := time.Since(began)
			after, err := cpuTime(ctx, s.pool)
			way.perRow = append(way.perRow, float64((after-before).Microseconds())/float64(rows))
			return float64(rows) / took.Seconds(), err
		case time.Now().After(deadline):
			return 0, fmt.Errorf("of %d events %d were published", rows, to.count()-published)
		}
	}
}

func (s *sources) report(facts []string) *report {
	slices.SortFunc(s.ways, func(a, b *sourceWay) int { return strings.Compare(a.name, b.name) })
	log, poll := s.ways[0], s.ways[1]
	r := &report{
		title: fmt.Sprintf("the log and the table as a relay's source: %d events of 1 KB a second for %v a run from a writer that tells nobody; a drain of %d events", pacePerSecond, s.env.size.box, s.env.size.rows),
		facts: append(facts, fmt.Sprintf("log: median of its p50: %.2f ms; processor time: %.0f ms a second, %.0f µs for a drained row", median(log.p50), 1000*median(log.cpu), median(log.perRow)),
			fmt.Sprintf("poll, every %v: median of its p50: %.2f ms; processor time: %.0f ms a second, %.0f µs for a drained row", fastPoll, median(poll.p50), 1000*median(poll.cpu), median(poll.perRow)),
			fmt.Sprintf("the %d processors here have %d µs for a row at 100,000 rows a second", runtime.NumCPU(), 10*runtime.NumCPU())),
		unit:  "rows/s",
		rates: []rates{{name: "wal_drain", note: "from the log", perRun: log.drained}, {name: "table_drain", note: "from the table", perRun: poll.drained}},
	}
	vs := make([]float64, len(log.cpu))
	for i := range vs {
		vs[i] = log.cpu[i] / poll.cpu[i]
	}
	r.ratios = []ratios{
		{name: "wal_commit_to_publish_p99_ms", unit: "ms", perRun: log.p99},
		{name: "poll_commit_to_publish_p99_ms", unit: "ms", perRun: poll.p99},
		{name: "wal_vs_polling_cpu", perRun: vs},
	}
	return r
}

// cpuTime is the processor time that this process and the server's have taken, where the server runs on this machine with Linux.
func cpuTime(ctx context.Context, pool *pgxpool.Pool) (total time.Duration, err error) {
	var backend int
	if err := pool.QueryRow(ctx, `select pg_backend_pid()`).Scan(&backend); err != nil {
		return 0, err
	}
	server, _, _, err := processorTime(strconv.Itoa(backend))
	if err != nil {
		return 0, fmt.Errorf("the processor time of the server, which must run on this machine: %w", err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		parent, own, ended, err := processorTime(e.Name())
		switch {
		case err != nil: // no process, or one that has just ended
		case e.Name() == server:
			total += own + ended // with what its ended processes took
		case parent == server || e.Name() == strconv.Itoa(os.Getpid()):
			total += own
		}
	}
	return total, nil
}

// processorTime returns the parent of a process, its time, and that of its children that have ended: proc(5).
func processorTime(pid string) (parent string, own, ended time.Duration, err error) {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return "", 0, 0, err
	}
	_, rest, found := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if !found || len(fields) < 15 {
		return "", 0, 0, fmt.Errorf("/proc/%s/stat is not as expected", pid)
	}
	var ticks [4]int64
	for i := range ticks {
		if ticks[i], err = strconv.ParseInt(fields[11+i], 10, 64); err != nil {
			return "", 0, 0, err
		}
	}
	const tick = time.Second / 100
	return fields[1], time.Duration(ticks[0]+ticks[1]) * tick, time.Duration(ticks[2]+ticks[3]) * tick, nil
}
