package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/millrace/cmd/millrace/internal/output"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

func (d *doctor) inOutbox(ctx context.Context) error {
	if !d.there["outbox"] {
		return nil
	}
	r, err := outboxadmin.Inspect(ctx, d.pool, d.schema)
	if err == nil {
		d.diagnose(r)
	}
	return err
}

// diagnose concludes from the outbox's report.
func (d *doctor) diagnose(r *outboxadmin.Report) {
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
		if r.Age(s.OldestMoving) <= d.limits.lag && (s.Held || r.Age(s.Oldest) <= d.limits.lag) {
			continue
		}
		late++
		if alive > 0 && !s.Held {
			d.find("outbox", fmt.Sprintf("shard %d is stuck: %s, and no relay holds it", s.Shard, waits(s.Pending, r.Age(s.Oldest))),
				"relays run, but none takes its lease: they have another version, or a transaction locks its row in outbox_shard", d.command("", "outbox", "status", "--shards")+"; find who holds locks: "+d.command("", "doctor", "--max-transaction", "1m"))
			late--
		}
	}
	d.unsent(r, alive, late, waiting)
	d.topics(r)
	for _, s := range r.Shards {
		if s.Suspect != "" && s.Attempts > 0 {
			d.find("poison", fmt.Sprintf("relays ended %s while they sent event %s of shard %d", output.Count(s.Attempts, "time"), s.Suspect, s.Shard),
				"it may be a poison message, which kills the process that sends it; after 3 times it is dead", d.command(s.Suspect, "explain"))
		} else if s.UncleanTakeovers > 1 {
			d.find("poison", fmt.Sprintf("shard %d had %s, and nothing was published in between", s.Shard, output.Count(s.UncleanTakeovers, "unclean takeover")),
				"an event of this shard kills relays, or something else does; its events are sent one by one to find out", status)
		}
	}
	if dead := r.Failed["dead"]; dead.N > 0 {
		d.find("outbox", fmt.Sprintf("%s %s dead in the outbox, and %v %s blocked", countOf(dead, "event"), output.Pick(dead.N, "is", "are"), r.Failed["blocked"], output.Pick(r.Failed["blocked"].N, "is", "are")),
			"the broker refuses them, or they failed too often; they are not retried until an operator decides",
			d.command("", "outbox", "list", "--state", "dead")+"; then \"millrace outbox retry\" or \"millrace outbox discard\"")
	}
}

// waits counts events that wait.
func waits(n outboxadmin.Count, oldest time.Duration) string {
	return fmt.Sprintf("%s %s waiting, the oldest for %s", countOf(n, "event"), output.Pick(n.N, "is", "are"), output.Duration(oldest))
}

func relaysRun(n int) string {
	return output.Count(n, "relay") + " " + output.Pick(n, "runs", "run")
}

// unsent finds events that are not published in time: of the shards with events, so many are late.
func (d *doctor) unsent(r *outboxadmin.Report, alive, late, waiting int) {
	log := "; see the log of the relays"
	overdue := r.NextDue != nil && r.Age(r.NextDue) > d.limits.lag
	var wait []string
	for _, w := range []struct {
		what string
		is   bool
	}{
		{waits(r.Pending, r.Age(r.Oldest)), r.Pending.N > 0},
		{fmt.Sprintf("%s %s to be retried", countOf(r.Failed["retrying"], "failed event"), output.Pick(r.Failed["retrying"].N, "is", "are")), r.Failed["retrying"].N > 0},
		{"delayed events are overdue by " + output.Duration(r.Age(r.NextDue)), overdue},
	} {
		if w.is {
			wait = append(wait, w.what)
		}
	}
	switch {
	case alive == 0 && len(wait) > 0:
		d.find("outbox", strings.Join(wait, ", ")+", and no relay runs", "the process with the relay ended, or cannot reach this database",
			"start a service with a relay inside, or: "+d.withBroker("relay"))
	case late > 0 && late == waiting:
		d.find("outbox", fmt.Sprintf("%s, although %s", waits(r.Pending, r.Age(r.Oldest)), relaysRun(alive)),
			"the broker is down or refuses them, a topic is missing, or more events come than the relays can publish", d.withBroker("doctor")+log)
	case late > 0:
		d.find("outbox", fmt.Sprintf("%d of %d shards have events that have waited for more than %v", late, waiting, d.limits.lag),
			"an event or a topic blocks these shards, while others go on", d.command("", "outbox", "status", "--shards")+log)
	}
	if alive > 0 && overdue {
		d.find("outbox", fmt.Sprintf("delayed events are overdue by %s, although %s", output.Duration(r.Age(r.NextDue)), relaysRun(alive)),
			"the relays cannot move them into the outbox: their role lacks a privilege, or a transaction locks the rows", d.command("", "migrate", "grants", "--relay", "ROLE")+log)
	}
}

// sequences checks what a restore may have left.
func (d *doctor) sequences(ctx context.Context) error {
	if !d.there["outbox"] {
		return nil
	}
	found, err := outboxadmin.Check(ctx, d.pool, d.schema, false)
	for _, f := range found {
		if !f.Note {
			remedy := d.command("", f.Remedy...)
			if f.Remedy == nil {
				remedy = "do what the finding says; then run: " + d.command("", "outbox", "check")
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
	groups, err := deadletter.ListGroups(ctx, d.pool, d.schema, deadletter.Selection{})
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
	remedy := d.command("", "dead", "list", "--groups") + "; after a fix " + d.command("", "dead", "replay", "--group", groups[0].Group) + "; or \"millrace dead discard\""
	if unidentified > 0 {
		remedy = fmt.Sprintf("%s %s no event ID: before a replay set kafka.consumers.NAME.event_id (in Go, kafka.ConsumerConfig.EventID) to header:NAME, "+
			"json:PATH or offset, or pubsub.consumers.NAME.event_id (pubsub.SubscriptionConfig.EventID) to header:NAME, json:PATH or message_id, "+
			"and restart the service; then %s", output.Count(unidentified, "dead letter"), output.Pick(unidentified, "has", "have"), remedy)
	}
	d.find("dead-letters", fmt.Sprintf("%s with %s", output.Count(n, "dead letter"), output.Count(len(groups), "different error")),
		fmt.Sprintf("handlers failed; the most frequent error (%s): %s", output.Count(groups[0].Events, "event"), beginning(groups[0].Text)),
		remedy)
	return nil
}

// retries finds events that nobody retries.
func (d *doctor) retries(ctx context.Context) error {
	if !d.there["claim"] {
		return nil
	}
	var now time.Time
	if err := d.pool.QueryRow(ctx, `select now()`).Scan(&now); err != nil {
		return err
	}
	found, err := deadletter.List(ctx, d.pool, d.schema, deadletter.Listing{Selection: deadletter.Selection{States: []string{"waiting"}}, Limit: 1000})
	overdue := map[string]int{}
	for _, f := range found {
		if f.Due != nil && now.Sub(*f.Due) > d.limits.lag {
			overdue[f.Consumer]++
		}
	}
	for _, consumer := range slices.Sorted(maps.Keys(overdue)) {
		d.find("retries", fmt.Sprintf("%s of consumer %s %s overdue for a retry", output.Count(overdue[consumer], "event"), consumer, output.Pick(overdue[consumer], "is", "are")),
			"no service of this consumer runs, or all its handlers are busy, or it has a router of its own and its subscriber is not wrapped by Claim.Subscriber", "start the service; "+d.command("", "dead", "list", "--state", "retrying", "--consumer", consumer))
	}
	return err
}

// poison finds events that may kill the processes of consumers.
func (d *doctor) poison(ctx context.Context) error {
	if !d.there["claim"] {
		return nil
	}
	found, err := claim.Suspects(ctx, d.pool, d.schema, 10)
	for _, s := range found {
		d.find("poison", fmt.Sprintf("consumer %s started the event with record %s alone %s, and never finished it", s.Consumer, s.Record, output.Count(s.Starts, "time")),
			"it was in flight when a process was killed, and may be a poison message; after claim.max_starts (3) times it becomes a dead letter", d.command(s.Record, "explain")+"; see the log of the service")
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
	n := outboxadmin.Count{N: int64(len(found)), AtLeast: len(found) == limit}
	d.find("effects", fmt.Sprintf("%s %s in doubt or in conflict, the first one since %s", countOf(n, "effect"), output.Pick(n.N, "is", "are"), found[0].Until.UTC().Format(time.RFC3339)),
		"a process died between the call of a provider and its record, or the provider gave no answer: "+beginning(found[0].Reason),
		d.command("", "effect", "list")+"; ask the provider by the idempotency key, then run "+d.command(found[0].Key, "effect", "resolve", "--done")+", or --not-done")
	return nil
}
