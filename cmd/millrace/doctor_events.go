package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
)

func (d *doctor) inOutbox(ctx context.Context) error {
	if !d.there["outbox"] {
		return nil
	}
	r, err := outbox.Inspect(ctx, d.pool, d.schema)
	if err == nil {
		d.diagnose(r)
	}
	return err
}

// diagnose concludes from the outbox's report.
func (d *doctor) diagnose(r *outbox.Report) {
	alive, late, waiting := 0, 0, 0
	for _, relay := range r.Relays {
		if relay.Alive {
			alive++
		}
	}
	status := d.command("", "outbox", "status")
	for _, s := range r.Shards {
		if s.Pending.N == 0 {
			continue
		}
		waiting++
		if r.Age(s.Oldest) <= d.limits.lag {
			continue
		}
		late++
		if alive > 0 && !s.Held {
			d.find("outbox", fmt.Sprintf("shard %d is stuck: %v events wait, the oldest for %s, and no relay holds it", s.Shard, s.Pending, ago(r.Age(s.Oldest))),
				"relays run and do not take its lease: they are another version's, or something holds its row in outbox_shard", status+"; look for who holds locks: "+d.command("", "doctor", "--max-transaction", "1m"))
			late--
		}
	}
	d.unsent(r, alive, late, waiting)
	for _, s := range r.Shards {
		if s.Suspect != "" && s.Attempts > 0 {
			d.find("poison", fmt.Sprintf("relays have ended %d times while they sent event %s of shard %d", s.Attempts, s.Suspect, s.Shard),
				"it kills the process that sends it: after 3 times it is parked", d.command(s.Suspect, "explain"))
		} else if s.Strikes > 1 {
			d.find("poison", fmt.Sprintf("shard %d was taken over %d times from relays that had been killed, and nothing was published in between", s.Shard, s.Strikes),
				"an event of it kills relays, or something else kills them: it is sent one by one to find out", status)
		}
	}
	if parked := r.Failed["parked"]; parked.N > 0 {
		d.find("outbox", fmt.Sprintf("%v events are parked, and %v wait behind them", parked, r.Failed["queued"]),
			"the broker refuses them, or they failed too often: an operator decides", d.command("", "outbox", "list", "--state", "parked")+"; then outbox retry or outbox discard, by event, --key or --topic")
	}
}

// unsent tells of events that are not published in time, of which so many shards of those with events are late.
func (d *doctor) unsent(r *outbox.Report, alive, late, waiting int) {
	log := "; the relays' log tells what they retry"
	overdue := r.NextDue != nil && r.Age(r.NextDue) > d.limits.lag
	var wait []string
	for _, w := range []struct {
		what string
		is   bool
	}{
		{fmt.Sprintf("%v events wait, the oldest for %s", r.Pending, ago(r.Age(r.Oldest))), r.Pending.N > 0},
		{fmt.Sprintf("%v failed events are to be retried", r.Failed["retry"]), r.Failed["retry"].N > 0},
		{"delayed events are due for " + ago(r.Age(r.NextDue)), overdue},
	} {
		if w.is {
			wait = append(wait, w.what)
		}
	}
	switch {
	case alive == 0 && len(wait) > 0:
		d.find("outbox", strings.Join(wait, ", ")+", and no relay runs", "the process with the relay has ended, or cannot reach this database",
			d.withBroker("relay")+", or a service with its relay inside")
	case late > 0 && late == waiting:
		d.find("outbox", fmt.Sprintf("%v events wait, the oldest for %s, though %d relays run", r.Pending, ago(r.Age(r.Oldest)), alive),
			"the broker is down or refuses, a topic is missing, or more is published than the relays take", d.withBroker("doctor")+log)
	case late > 0:
		d.find("outbox", fmt.Sprintf("%d of %d shards have events that wait for more than %v", late, waiting, d.limits.lag),
			"an event or a topic of theirs holds them up, while others go on", d.command("", "outbox", "status")+log)
	}
	if alive > 0 && overdue {
		d.find("outbox", fmt.Sprintf("delayed events are due for %s, though %d relays run", ago(r.Age(r.NextDue)), alive),
			"the relays cannot move them into the outbox: their role lacks a privilege, or somebody holds the rows", d.command("", "migrate", "grants", "--relay", "ROLE")+log)
	}
}

// sequences looks for what a restore may have left.
func (d *doctor) sequences(ctx context.Context) error {
	if !d.there["outbox"] {
		return nil
	}
	found, err := outbox.Examine(ctx, d.pool, d.schema, false)
	for _, f := range found {
		if !f.Note {
			remedy := d.command("", f.Remedy...)
			if f.Remedy == nil {
				remedy = "as the finding says; then " + d.command("", "outbox", "check")
			}
			d.find("sequences", f.Text, "a restore, or a change by hand", remedy)
		}
	}
	return err
}

func (d *doctor) deadLetters(ctx context.Context) error {
	if !d.there["claim"] {
		return nil
	}
	groups, err := claim.ListGroups(ctx, d.pool, d.schema, claim.Selection{})
	if err != nil || len(groups) == 0 {
		return err
	}
	n, unidentified := 0, 0
	for _, g := range groups {
		n += g.Events
		if strings.Contains(g.Text, claim.ErrNoEventID.Error()) {
			unidentified += g.Events
		}
	}
	remedy := d.command("", "dead", "list", "--groups") + "; then " + d.command("", "dead", "replay", "--group", groups[0].Group) + ", or discard"
	if unidentified > 0 {
		remedy = fmt.Sprintf("%d of them have no event ID: before they are replayed, set kafka.consumers.NAME.event_id (in Go, kafka.ConsumerConfig.EventID) to where "+
			"their producer puts it, header:NAME, json:PATH or offset, or pubsub.consumers.NAME.event_id (pubsub.SubscriptionConfig.EventID) to header:NAME, json:PATH "+
			"or message_id, and restart the service; see %s", unidentified, remedy)
	}
	d.find("dead-letters", fmt.Sprintf("%d dead letters wait for a decision, of %d kinds", n, len(groups)),
		fmt.Sprintf("most of them (%d): %s", groups[0].Events, beginning(groups[0].Text)),
		remedy)
	return nil
}

// retries looks for events that nobody brings back.
func (d *doctor) retries(ctx context.Context) error {
	if !d.there["claim"] {
		return nil
	}
	var now time.Time
	if err := d.pool.QueryRow(ctx, `select now()`).Scan(&now); err != nil {
		return err
	}
	found, err := claim.List(ctx, d.pool, d.schema, claim.Listing{Selection: claim.Selection{States: []string{"waiting"}}, Limit: 1000})
	overdue := map[string]int{}
	for _, f := range found {
		if f.Due != nil && now.Sub(*f.Due) > d.limits.lag {
			overdue[f.Consumer]++
		}
	}
	for _, consumer := range slices.Sorted(maps.Keys(overdue)) {
		d.find("retries", fmt.Sprintf("%d events of consumer %s are to be tried again, and are past their time", overdue[consumer], consumer),
			"no process runs it, or all its handlers are busy, or, with a router of its own, its subscriber is not wrapped by Claim.Subscriber", "start the service; "+d.command("", "dead", "list", "--state", "waiting", "--consumer", consumer))
	}
	return err
}

// poison looks for events that end the processes of consumers.
func (d *doctor) poison(ctx context.Context) error {
	if !d.there["claim"] {
		return nil
	}
	found, err := claim.Suspects(ctx, d.pool, d.schema, 10)
	for _, s := range found {
		d.find("poison", fmt.Sprintf("the event with the record %s of consumer %s was begun alone %d times and did not end", s.Record, s.Consumer, s.Starts),
			"it was in hand when a process was killed, and may be why: after claim.max_starts (3) times it becomes a dead letter", d.command(s.Record, "explain")+"; its process's log tells more")
	}
	return err
}

func (d *doctor) effects(ctx context.Context) error {
	if !d.there["effect"] {
		return nil
	}
	const limit = 1000
	found, err := effect.List(ctx, d.pool, d.schema, effect.Listing{Limit: limit})
	if err != nil || len(found) == 0 {
		return err
	}
	n := outbox.Count{N: int64(len(found)), AtLeast: len(found) == limit}
	d.find("effects", fmt.Sprintf("%v effects are in doubt or in conflict, the first since %s", n, found[0].Until.UTC().Format(time.RFC3339)),
		"a process died between the call of a provider and its record, or the provider gave no answer: "+beginning(found[0].Reason),
		d.command("", "effect", "list")+"; ask the provider by the idempotency key, then "+d.command(found[0].Key, "effect", "resolve", "--done")+", or --not-done")
	return nil
}
