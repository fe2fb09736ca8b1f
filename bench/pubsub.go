package main

import (
	"context"
	"fmt"
	"time"
)

// pubsubs measures what transport/pubsub costs beside Google's own client, which it stands on, and beside
// watermill-googlecloud. Each measurement has a broker of its own with nothing else in it: a pstest, and a new project of
// Google's emulator. Topics, subscriptions and connections are there before the clock starts.
//
// pstest runs in this process and takes its part of the processors from both sides; swift tells what was changed about it. The emulator delivers about 2,000
// messages a second to one stream, whoever reads them, so there a consumer can only show that it is no slower than that.
//
// Each run is checked: every message is there once, or was delivered once, and acked.
var pubsubs = scenario{
	name:    "pubsub",
	summary: "publish to Pub/Sub and consume from it: the transport to Google's client and to watermill-googlecloud",
	full:    size{runs: 12, rows: 100_000, bigRows: 10_000, box: time.Minute},
	quick:   size{runs: 4, rows: 30_000, bigRows: 1000, box: 20 * time.Second},
	run:     runPubsub,
	brokers: true,
}

// pubsubbing is one run of the scenario.
type pubsubbing struct{ rounds }

func runPubsub(ctx context.Context, env *environment) (r *report, err error) {
	p := &pubsubbing{rounds{env: env, unit: "messages/s"}}
	err = brokers(ctx, func(all []broker, fact string) error {
		for _, b := range all {
			if err := p.publish(ctx, b); err != nil {
				return err
			}
			if err := p.consume(ctx, b); err != nil {
				return err
			}
		}
		r = p.report(all, fact)
		return nil
	})
	return r, err
}

// publish measures the publishers. watermill-googlecloud takes a round trip and 10 ms for each message, so it gets few.
func (p *pubsubbing) publish(ctx context.Context, b broker) error {
	rows := p.env.size.rows
	return p.run(ctx, p.env.size.runs, nil, []entrant{
		p.publishing(b, "publish", fmt.Sprintf("PublishBatch in calls of %d by %d callers", publishCall, publishCallers), rows, ours(publishCallers)),
		p.publishing(b, "publish, one caller", "the same by one caller, who waits for each call", rows, ours(1)),
		p.publishing(b, "bare publish", "Google's client at its defaults: Publish for each message, the results awaited at the end", rows, bare),
		p.publishing(b, "watermill-googlecloud publish", fmt.Sprintf("Publish in calls of %d by %d callers, its defaults", publishCall, publishCallers),
			min(rows, publishCallers*publishCall), theirs(publishCallers)),
	})
}

func (p *pubsubbing) consume(ctx context.Context, b broker) error {
	rows := p.env.size.rows
	if b.name != "" {
		rows = p.env.size.bigRows
	}
	return p.run(ctx, p.env.size.runs, nil, []entrant{
		p.consuming(b, "consume", fmt.Sprintf("a loop that acks, %d in hand and the default prefetch: %d outstanding", consumeConcurrency, outstanding), rows, loop),
		p.consuming(b, "bare consume", fmt.Sprintf("Google's client at its defaults: Receive with a function that acks, %d outstanding", outstanding), rows, receive),
		p.consuming(b, "router consume", "as consume, through Watermill's router", rows, routed),
		p.consuming(b, "watermill-googlecloud consume", "its subscriber at its defaults, a loop that acks", rows, theirLoop),
	})
}

func (p *pubsubbing) report(all []broker, fact string) *report {
	r := &report{
		title: "messages of 1 KB without ordering keys; a broker of its own for each measurement",
		facts: []string{fact},
		unit:  p.unit,
		rates: p.all(),
	}
	for _, b := range all {
		of := func(name, own, other string) {
			r.ratios = append(r.ratios, ratio(name+b.suffix("_"), p.of(own+b.suffix(", ")), p.of(other+b.suffix(", "))))
		}
		of("publish_vs_watermill_googlecloud", "publish", "watermill-googlecloud publish")
		of("publish_vs_bare_client", "publish", "bare publish")
		of("publish_single_caller_vs_bare_client", "publish, one caller", "bare publish")
		of("consume_vs_bare_client", "consume", "bare consume")
		of("router_consume_vs_bare_client", "router consume", "bare consume")
		of("consume_vs_watermill_googlecloud", "consume", "watermill-googlecloud consume")
	}
	return r
}
