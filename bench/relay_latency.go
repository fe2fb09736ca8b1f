package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/outbox"
)

// warmUp is what is not measured at the beginning of a run: connections, prepared statements, the relay's first reads.
const warmUp = 500 * time.Millisecond

// relayLatency measures how long an event takes from its commit to its publishing, at an even 500 events a second on a
// machine that does nothing else: the relay's wake-up and one read, since there is never a backlog. Both ends read the
// wall clock, because the commit may happen in another process and monotonic clocks do not cross processes; on one
// machine it is the same clock, and its corrections during a run of seconds are far below what is measured.
//
// An event counts as committed when the producer's call has returned, and as published when the publisher is called.
// That the relay may be quicker than the return of the call shows as a negative time.
//
// Each run is checked: every event was published. The events of the first half second are left out.
var relayLatency = scenario{
	name:    "relay-latency",
	summary: "from commit to publish at 500 events/s: nudged in the process, notified by another process, found by the poll",
	full:    size{runs: 10, slowRuns: 10, box: 10 * time.Second},
	quick:   size{runs: 3, slowRuns: 1, box: 3 * time.Second},
	run:     runRelayLatency,
}

// latency is one way in which a relay learns of events.
type latency struct {
	name string
	note string
	// produce commits events at the pace for that long and tells when each was committed.
	produce func(ctx context.Context, lasts time.Duration, committed *times) error
	options []func(*outbox.RelayConfig)
	p50     []float64
	p99     []float64
}

func runRelayLatency(ctx context.Context, env *environment) (r *report, err error) {
	dsn := env.dsn
	facts, err := serverFacts(ctx, dsn, env.source)
	if err != nil {
		return nil, err
	}
	err = withSchema(ctx, dsn, func(pool *pgxpool.Pool, schema string) error {
		business := orders{schema}
		if err := errors.Join(outbox.Migrate(ctx, pool, schema), business.create(ctx, pool)); err != nil {
			return fmt.Errorf("create tables: %w", err)
		}
		publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
		if err != nil {
			return err
		}
		run := withOutbox{pool, business, publisher, "pgtx.Run"}
		own := callerTx{run}
		inProcess := func(p producer) func(context.Context, time.Duration, *times) error {
			return func(ctx context.Context, lasts time.Duration, committed *times) error {
				return pace(ctx, lasts, pacePerSecond, p.commit, func(id string, at time.Time) { committed.note(id, at.UnixNano()) })
			}
		}
		ways := []*latency{
			{name: "nudge", note: "pgtx.Run in the relay's process", produce: inProcess(run)},
			{
				name: "other_process", note: "pgtx.Run in a process of its own with an outbox.Notifier",
				produce: func(ctx context.Context, lasts time.Duration, committed *times) error {
					return produceElsewhere(ctx, dsn, schema, lasts, committed)
				},
			},
			{name: "poll", note: "a caller's own transaction, of which nobody tells the relay: its poll, each second", produce: inProcess(own)},
		}
		for round := range env.size.runs {
			for _, way := range ways {
				if way.name == "poll" && round >= env.size.slowRuns {
					continue
				}
				if err := way.measure(ctx, dsn, schema, run, env.size.box); err != nil {
					return fmt.Errorf("%s, run %d: %w", way.name, round+1, err)
				}
				env.progress("run %d of %d: %-13s p50 %8.2f ms, p99 %8.2f ms", round+1, env.size.runs, way.name,
					way.p50[len(way.p50)-1], way.p99[len(way.p99)-1])
			}
			slices.Reverse(ways)
		}
		r = latencyReport(facts, env.size.box, ways)
		return nil
	})
	return r, err
}

// measure runs a relay and the producer.
func (l *latency) measure(ctx context.Context, dsn, schema string, probe withOutbox, lasts time.Duration) (err error) {
	committed, to := newTimes(), &arrivals{times: newTimes()}
	stop, err := startRelays(ctx, dsn, schema, to, 1, l.options...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := settleRelays(ctx, probe, &to.counter); err != nil {
		return err
	}
	probes := to.times.count()
	if err := l.produce(ctx, lasts+warmUp, committed); err != nil {
		return err
	}
	deadline := time.Now().Add(recordTimeout)
	for to.times.count() < probes+committed.count() && time.Now().Before(deadline) && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	took, err := between(committed, to.times, int(warmUp.Seconds()*pacePerSecond))
	if err != nil {
		return err
	}
	l.p50 = append(l.p50, percentile(took, 0.50))
	l.p99 = append(l.p99, percentile(took, 0.99))
	return nil
}

// between returns the milliseconds from the one to the other, sorted, of all events but the first.
func between(committed, published *times, first int) ([]float64, error) {
	committed.mu.Lock()
	defer committed.mu.Unlock()
	published.mu.Lock()
	defer published.mu.Unlock()
	var (
		took    []float64
		missing int
	)
	for n, id := range committed.all {
		at, ok := published.byID[id]
		switch {
		case !ok:
			missing++
		case n >= first:
			took = append(took, float64(at-committed.byID[id])/float64(time.Millisecond))
		}
	}
	if missing > 0 || len(took) == 0 {
		return nil, fmt.Errorf("of %d committed events %d were not published: want all, and more than %d", len(committed.all), missing, first)
	}
	slices.Sort(took)
	return took, nil
}

// percentile returns the smallest value that the part of the sorted values is not above.
func percentile(sorted []float64, part float64) float64 {
	at := int(float64(len(sorted))*part+0.999999) - 1
	return sorted[max(0, min(at, len(sorted)-1))]
}

func latencyReport(facts []string, box time.Duration, ways []*latency) *report {
	slices.SortFunc(ways, func(a, b *latency) int { return latencyOrder(a) - latencyOrder(b) })
	r := &report{
		title: fmt.Sprintf("from commit to publish, %d events of 1 KB a second for %v a run, one relay with its defaults, nothing else to do", pacePerSecond, box),
		facts: facts,
	}
	for _, way := range ways {
		r.ratios = append(r.ratios, ratios{name: way.name + "_p99_ms", unit: "ms", perRun: way.p99})
		r.facts = append(r.facts, fmt.Sprintf("%s: %s; median of its p50: %.2f ms", way.name, way.note, median(way.p50)))
	}
	return r
}

func latencyOrder(l *latency) int {
	return slices.Index([]string{"nudge", "other_process", "poll"}, l.name)
}

// arrivals is a publisher that notes when it is called for each event.
type arrivals struct {
	counter
	times *times
}

// PublishBatch acknowledges every message.
func (a *arrivals) PublishBatch(ctx context.Context, topicName string, msgs []*message.Message) []error {
	now := time.Now().UnixNano()
	for _, msg := range msgs {
		a.times.note(msg.UUID, now)
	}
	return a.counter.PublishBatch(ctx, topicName, msgs)
}

// Publish acknowledges every message.
func (a *arrivals) Publish(topicName string, msgs ...*message.Message) error {
	a.PublishBatch(context.Background(), topicName, msgs)
	return nil
}
