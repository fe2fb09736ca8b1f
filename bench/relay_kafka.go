package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/bench/internal/wait"
	"github.com/millrace-go/millrace/outbox"
)

// relayKafka measures what it costs a relay to publish each event once: one relay that publishes in Kafka's transactions, beside
// one that publishes at least once. They empty a backlog, and they publish events that are committed at an even pace.
//
// Each measurement has topics of its own, and on kfake a cluster of its own. Before the clock starts, each shard has published, and its
// transactions have been taken. The backlog is committed at once while the relay runs. The clock runs until the brokers have
// confirmed the last event, and no reader takes its part of the processors. At an even pace a read_committed reader notes when it
// gets each event.
//
// Each run is checked: when nothing is left in the outbox, a read_committed reader finds each event once, and no transaction is open.
var relayKafka = scenario{
	name:    "relay-kafka",
	summary: "publish the outbox to Kafka once, in transactions, beside at least once: a backlog, and 1,000 events/s",
	full:    size{rows: 200_000, runs: 10, slowRuns: 5, pace: 1000, box: 15 * time.Second},
	quick:   size{rows: 60_000, runs: 2, slowRuns: 1, pace: 1000, box: 4 * time.Second},
	run:     runRelayKafka,
}

// deliveries are the contestants.
var deliveries = []struct {
	outbox.Delivery
	name, ratio, note string
}{
	{outbox.AtLeastOnce, "at least once", "at_least_once", "one outbox.Relay, batches of up to 1,000, transport/kafka without compression"},
	{outbox.Transactional, "transactional", "transactional", "the same with Delivery: Transactional"},
}

// The kinds of measurements.
const (
	backlog  = "backlog"
	evenPace = "even pace"
)

func runRelayKafka(ctx context.Context, env *environment) (r *report, err error) {
	facts, err := serverFacts(ctx, env.dsn, env.source)
	if err != nil {
		return nil, err
	}
	r = &report{
		title: fmt.Sprintf("one relay to Kafka: a backlog of %s events of 1 KB in %s keys, and %s events a second for %v, commit to read_committed reader",
			thousands(float64(env.size.rows)), thousands(keys), thousands(float64(env.size.pace)), env.size.box),
		facts: facts,
		unit:  "events/s",
	}
	err = places(ctx, func(all []place, fact string) error {
		r.facts = append(r.facts, fact)
		for _, p := range all {
			if p.away > 0 { // the database would be as far away
				continue
			}
			err := withSchema(ctx, env.dsn, func(pool *pgxpool.Pool, schema string) error {
				l, err := newLive(ctx, env.dsn, pool, schema, newBacklog(env.size.rows))
				if err != nil {
					return err
				}
				return (&toKafka{live: l, env: env, place: p, told: map[string]string{}}).compare(ctx, r)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return r, err
}

// toKafka is an outbox with a backlog, and where it goes.
type toKafka struct {
	live
	env   *environment
	place place
	told  map[string]string // what a transaction had, in the last run of each kind
}

// of names a figure of the place.
func (k *toKafka) of(name string) string {
	if k.place.name == "" {
		return name
	}
	return name + "_" + k.place.name
}

// compare adds what it measures to the report.
func (k *toKafka) compare(ctx context.Context, r *report) (err error) {
	own, err := k.place.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.forget(k.schema), own.close()) }() // the topic of notes is that of all measurements
	drains, paced := rounds{env: k.env, unit: r.unit}, rounds{env: k.env, unit: "ms"}
	var draining, pacing []entrant
	p99 := make([]ratios, len(deliveries))
	for i, d := range deliveries {
		name := k.of(d.name)
		p99[i] = ratios{name: k.of(d.ratio + "_p99_ms"), unit: "ms"}
		draining = append(draining, entrant{name, d.note, func(ctx context.Context) (float64, error) { return k.drain(ctx, d.Delivery) }})
		pacing = append(pacing, entrant{name, "", func(ctx context.Context) (mean float64, err error) {
			took, err := k.paced(ctx, d.Delivery)
			if err != nil {
				return 0, err
			}
			for _, ms := range took {
				mean += ms / float64(len(took))
			}
			p99[i].perRun = append(p99[i].perRun, percentile(took, 0.99))
			return mean, nil
		}})
	}
	if err := drains.run(ctx, k.env.size.runs, k.settle, draining); err != nil {
		return err
	}
	if err := paced.run(ctx, k.env.size.slowRuns, k.settle, pacing); err != nil {
		return err
	}
	r.rates = append(r.rates, drains.all()...)
	r.ratios = append(r.ratios, ratio(k.of("transactional_vs_at_least_once"), drains.of(k.of(deliveries[1].name)), drains.of(k.of(deliveries[0].name))))
	for i, d := range deliveries {
		r.ratios = append(r.ratios, ratios{k.of(d.ratio + "_mean_ms"), "ms", paced.of(k.of(d.name)).perRun}, p99[i])
	}
	for _, what := range []string{backlog, evenPace} {
		if fact := k.told[k.of(what)]; fact != "" {
			r.facts = append(r.facts, k.of(what)+": "+fact)
		}
	}
	return nil
}

// drain commits the backlog, and returns how many of its events the brokers have confirmed in a second.
func (k *toKafka) drain(ctx context.Context, d outbox.Delivery) (rate float64, err error) {
	err = k.relaying(ctx, d, func(ctx context.Context, to *kafkaSink, warm []event) error {
		before := to.tap.counts()
		done := make(chan struct{})
		s := newSink(len(k.events), func() { close(done) })
		to.sink.Store(s)
		if err := k.commit(ctx, backlogColumns+k.kept+` order by seq`, len(k.events)); err != nil {
			return err
		}
		began := time.Now()
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d events were published: %w", s.count(), len(k.events), context.Cause(ctx))
		}
		rate = float64(len(k.events)) / s.last.Sub(began).Seconds()
		k.tell(backlog, d, to.tap.counts().since(before), len(k.events), s.last.Sub(began))
		if err := k.drained(ctx); err != nil {
			return err
		}
		return to.cluster.check(ctx, slices.Concat(warm, k.events), recordTimeout)
	})
	return rate, err
}

// paced commits events at the pace, and returns the sorted milliseconds from the commit of each to a read_committed reader.
func (k *toKafka) paced(ctx context.Context, d outbox.Delivery) (took []float64, err error) {
	committing, err := openPool(ctx, k.dsn, int32(max(1, k.env.size.pace/perWorker)), 0)
	if err != nil {
		return nil, err
	}
	defer committing.Close()
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: k.schema})
	if err != nil {
		return nil, err
	}
	producer := withOutbox{committing, orders{k.schema}, publisher, "pgtx.Run"}
	err = k.relaying(ctx, d, func(ctx context.Context, to *kafkaSink, warm []event) error {
		read := newTimes()
		stop, err := to.cluster.follow(ctx, read)
		if err != nil {
			return err
		}
		defer stop()
		committed, before, began := newTimes(), to.tap.counts(), time.Now()
		err = pace(ctx, k.env.size.box+warmUp, k.env.size.pace, producer.commit, func(id string, at time.Time) { committed.note(id, at.UnixNano()) })
		if err != nil {
			return err
		}
		k.tell(evenPace, d, to.tap.counts().since(before), committed.count(), time.Since(began))
		for read.count() < len(warm)+committed.count() {
			if !wait.For(ctx, time.Millisecond) {
				return fmt.Errorf("a reader got %d of %d events: %w", read.count()-len(warm), committed.count(), context.Cause(ctx))
			}
		}
		if err := k.drained(ctx); err != nil {
			return err
		}
		if took, err = between(committed, read, int(warmUp.Seconds()*float64(k.env.size.pace))); err != nil {
			return err
		}
		all := slices.Clone(warm)
		for _, id := range committed.all {
			all = append(all, event{id: id})
		}
		return to.cluster.check(ctx, all, recordTimeout)
	})
	return took, err
}

// tell notes for the report what there was in a transaction.
func (k *toKafka) tell(what string, d outbox.Delivery, n kafkaCounts, events int, took time.Duration) {
	if d != outbox.Transactional || n.transactions == 0 {
		return
	}
	k.told[k.of(what)] = fmt.Sprintf("%.0f transactions a second, %.1f events and %.2f Produce requests in each",
		float64(n.transactions)/took.Seconds(), float64(events)/float64(n.transactions), float64(n.produce)/float64(n.transactions))
	k.env.progress("  %s: %s", k.of(what), k.told[k.of(what)])
}

const backlogColumns = `select shard, event_id, topic, key, headers, payload from `

// relaying calls fn while a relay runs whose shards have all published. warm are the events of that.
func (k *toKafka) relaying(ctx context.Context, d outbox.Delivery, fn func(ctx context.Context, to *kafkaSink, warm []event) error) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, drainTimeout, errors.New("the relay does not get on"))
	defer cancel()
	c, err := k.place.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	to, err := newKafkaSink(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.transport.Close()) }()
	stop, err := startRelays(ctx, k.dsn, k.schema, to, 1, func(c *outbox.RelayConfig) { c.Delivery = d })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	warm, err := k.warm(ctx)
	if err != nil {
		return err
	}
	return fn(ctx, to, warm)
}

// warm has each shard publish a few events.
func (k *toKafka) warm(ctx context.Context) (warm []event, err error) {
	rows := fmt.Sprintf(`select shard, 'warm-' || event_id as event_id, topic, key, headers, payload from %s where seq <= %d order by seq`, k.kept, warmRows)
	found, err := k.pool.Query(ctx, `select event_id from (`+rows+`) as e`)
	if err != nil {
		return nil, err
	}
	for found.Next() {
		var e event
		if err := found.Scan(&e.id); err != nil {
			return nil, err
		}
		warm = append(warm, e)
	}
	if err := found.Err(); err != nil {
		return nil, err
	}
	if err := k.commit(ctx, rows, len(warm)); err != nil {
		return nil, err
	}
	return warm, k.drained(ctx)
}
