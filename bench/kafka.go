package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"
)

// kafkaEOS measures a service that consumes from Kafka and produces one record for each, in transactions: transport/kafka
// beside franz-go's session for group transactions, beside watermill-kafka, which is at least once, and beside itself at
// least once.
//
// Each measurement has topics of its own, and on kfake a cluster of its own, and the input is there before the clock
// starts. kfake runs in this process and takes its part of the processors from all sides. Where the brokers are 1 ms away
// each answer arrives that much later; the answers to what was asked at once are each late by 1 ms, not by the sum.
//
// Each run is checked by a read_committed reader: every record has its output once, and no transaction is open.
var kafkaEOS = scenario{
	name:    "kafka-eos",
	summary: "consume from Kafka and produce to it in transactions: the transport to franz-go and to watermill-kafka",
	full:    size{runs: 12, rows: 100_000, bigRows: 5000, slowRuns: 4, box: time.Minute},
	quick:   size{runs: 4, rows: 20_000, bigRows: 1500, slowRuns: 1, box: 20 * time.Second},
	run:     runKafkaEOS,
	brokers: true,
}

// How many messages a transaction has at the most: our default, and the fewest with which transactions are to pay.
const (
	perTransaction    = 1000
	fewPerTransaction = 100
)

// copier is a contestant: it consumes the input topic and produces a copy of each record.
type copier struct {
	name, note string
	// start begins in the background; stop returns when what was consumed is committed.
	start func(ctx context.Context, c *cluster, t *tap) (stop func() error, err error)
	// done tells how much of the input has its output for all to see.
	done func(c *cluster, ctx context.Context) (int, error)
	slow bool // it gets fewer records
}

// kafkaBench is one run of the scenario.
type kafkaBench struct {
	rounds
	taps map[string][]*tap // of each entrant, run by run
	told map[string]bool   // whose note is in the report
}

func runKafkaEOS(ctx context.Context, env *environment) (r *report, err error) {
	k := &kafkaBench{rounds: rounds{env: env, unit: "messages/s"}, taps: map[string][]*tap{}, told: map[string]bool{}}
	err = places(ctx, func(all []place, fact string) error {
		for _, p := range all {
			runs := env.size.runs
			if p.name != "" {
				runs = env.size.slowRuns
			}
			var entrants []entrant
			for _, who := range copiers(p) {
				entrants = append(entrants, k.copying(p, who))
			}
			if err := k.run(ctx, runs, nil, entrants); err != nil {
				return err
			}
		}
		r = k.report(all, fact)
		return nil
	})
	return r, err
}

// copiers are the contestants of a place. Smaller transactions than usual show their price only where requests take time.
func copiers(p place) []copier {
	all := []copier{watermillKafka, atLeastOnce}
	if p.away > 0 {
		all = append(all, franzGo(fewPerTransaction), transactionalLoop(fewPerTransaction))
	}
	return append(all, franzGo(perTransaction), franzRouter, transactionalLoop(perTransaction), transactionalRouter)
}

// copying measures one contestant at one place.
func (k *kafkaBench) copying(p place, who copier) entrant {
	name, note := who.name+p.suffix(), who.note
	if k.told[who.name] {
		note = ""
	}
	k.told[who.name] = true
	return entrant{name, note, func(ctx context.Context) (rate float64, err error) {
		defer func() {
			if err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			}
		}()
		n := k.env.size.rows
		if who.slow {
			n = k.env.size.bigRows
		}
		c, err := p.open(ctx)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, c.close()) }()
		events := newBacklog(n)
		if err := c.fill(ctx, events); err != nil {
			return 0, err
		}
		runtime.GC()
		t := newTap(p.away)
		stop, err := who.start(ctx, c, t)
		if err != nil {
			return 0, err
		}
		rate, err = throughput(ctx, func(ctx context.Context) (int, error) { return who.done(c, ctx) }, n, k.env.size.box)
		if err := errors.Join(err, stop()); err != nil {
			return 0, err
		}
		if err := c.check(ctx, events, k.env.size.box); err != nil {
			return 0, err
		}
		k.taps[name] = append(k.taps[name], t)
		return rate, nil
	}}
}

func (k *kafkaBench) report(all []place, fact string) *report {
	r := &report{
		title: "consume and produce, messages of 1 KB with keys, one output for each; topics of their own for each measurement",
		facts: []string{fact},
		unit:  k.unit,
		rates: k.all(),
	}
	for _, p := range all {
		of := func(name string, own, other copier) {
			r.ratios = append(r.ratios, ratio(name, k.of(own.name+p.suffix()), k.of(other.name+p.suffix())))
		}
		of(fmt.Sprintf("vs_franz_go_%d%s", perTransaction, p.suffix()), transactionalLoop(perTransaction), franzGo(perTransaction))
		of("router_vs_franz_go"+p.suffix(), transactionalRouter, franzGo(perTransaction))
		// A loop does without what Watermill's router costs for each message. That is the most that anything behind it can reach.
		of("router_vs_franz_go_router"+p.suffix(), transactionalRouter, franzRouter)
		of("franz_go_router_vs_franz_go"+p.suffix(), franzRouter, franzGo(perTransaction))
		of("router_vs_watermill_kafka"+p.suffix(), transactionalRouter, watermillKafka)
		// Where requests take no time transactions save none: this is what they cost.
		of("vs_own_at_least_once"+strings.TrimPrefix(p.suffix(), "_0ms"), transactionalRouter, atLeastOnce)
		if p.away == 0 {
			continue
		}
		of("vs_franz_go"+p.suffix(), transactionalLoop(fewPerTransaction), franzGo(fewPerTransaction))
		r.ratios = append(r.ratios, k.requests(p)...)
		r.facts = append(r.facts, k.peersRequests(p, franzGo(perTransaction)))
	}
	return r
}

// requests are what our transactions took there.
func (k *kafkaBench) requests(p place) []ratios {
	all := []ratios{
		{name: "add_partitions_per_transaction", unit: "requests"},
		{name: "add_offsets_per_transaction", unit: "requests"},
		{name: "offset_commits_per_transaction", unit: "requests"},
		{name: "end_txn_per_transaction", unit: "requests"},
		{name: "produce_per_broker_and_transaction", unit: "requests"},
		{name: "messages_per_transaction", unit: "messages"},
		{name: "requests_per_transaction", unit: "requests"},
	}
	for _, t := range k.taps[transactionalRouter.name+p.suffix()] {
		for i, value := range t.perTransaction(k.env.size.rows) {
			all[i].perRun = append(all[i].perRun, value)
		}
	}
	if p.name != "" {
		for i := range all {
			all[i].name += "_" + p.name
		}
	}
	return all
}

// peersRequests tells what the transactions of a peer took.
func (k *kafkaBench) peersRequests(p place, who copier) string {
	taps := k.taps[who.name+p.suffix()]
	n := taps[len(taps)-1].perTransaction(k.env.size.rows)
	return fmt.Sprintf("%s%s: for each transaction %.2f AddPartitions, %.2f AddOffsets, %.2f TxnOffsetCommit, %.2f EndTxn, %.2f Produce to a broker, %.0f messages",
		who.name, p.suffix(), n[0], n[1], n[2], n[3], n[4], n[5])
}
