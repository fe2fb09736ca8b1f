package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// endToEnd measures how long an event takes from its commit to its effect: producers, a relay, Pub/Sub and a consumer
// under a claim, each with its defaults and a pool of its own, in one process and so on one clock. The events are offered
// by the schedule, whether or not those before them are through.
//
// An event counts as committed when pgtx.Run has returned, and has had its effect when the transaction of its handler has
// committed, before the ack. The first events, which find the shards' relay and open connections, are not measured.
//
// Each run is checked: every event had one effect, and a little after the last commit nothing is left in the outbox or
// without its ack.
var endToEnd = scenario{
	name:    "end-to-end",
	summary: "from commit to effect through outbox, relay, Pub/Sub and claim, at 1,000 events/s",
	full:    size{runs: 3, pace: 1000, box: 30 * time.Second},
	quick:   size{runs: 1, pace: 1000, box: 10 * time.Second},
	run:     runEndToEnd,
}

// journey is one way through one broker.
type journey struct {
	broker        broker
	ordered       bool
	p50, p99, max []float64
	facts         []string
}

func (j *journey) name(of string) string {
	if j.ordered {
		of = "ordered_" + of
	}
	return of + j.broker.suffix("_")
}

func runEndToEnd(ctx context.Context, env *environment) (r *report, err error) {
	facts, err := serverFacts(ctx, env.dsn, env.source)
	if err != nil {
		return nil, err
	}
	err = brokers(ctx, func(all []broker, fact string) error {
		var journeys []*journey
		for _, b := range all {
			journeys = append(journeys, &journey{broker: b}, &journey{broker: b, ordered: true})
		}
		for round := range env.size.runs {
			for i := range journeys {
				if round%2 == 1 {
					i = len(journeys) - 1 - i
				}
				j := journeys[i]
				if err := j.measure(ctx, env); err != nil {
					return fmt.Errorf("%s, run %d: %w", j.name("events"), round+1, err)
				}
				env.progress("run %d of %d: %-24s p50 %7.2f ms, p99 %7.2f ms, max %7.2f ms; %s", round+1, env.size.runs, j.name("events"),
					j.p50[round], j.p99[round], j.max[round], j.facts[round])
			}
		}
		r = endToEndReport(append(facts, fact), env.size, journeys)
		return nil
	})
	return r, err
}

func endToEndReport(facts []string, size size, journeys []*journey) *report {
	r := &report{
		title: fmt.Sprintf("from commit to effect, %d events of 1 KB a second in %d keys for %v a run, everything at its defaults", size.pace, keys, size.box),
		facts: slices.Clone(facts),
	}
	for _, j := range journeys {
		r.facts = append(r.facts, j.name("events")+": "+j.facts[0])
		r.ratios = append(r.ratios, ratios{j.name("p50_ms"), "ms", j.p50}, ratios{j.name("p99_ms"), "ms", j.p99}, ratios{j.name("max_ms"), "ms", j.max})
	}
	return r
}
