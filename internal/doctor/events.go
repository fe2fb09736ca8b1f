package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

func (d *doctor) inOutbox(ctx context.Context) error {
	if !d.there["outbox"] {
		return nil
	}
	r, err := outboxadmin.Inspect(ctx, d.pool, d.Schema)
	if err == nil {
		d.diagnose(r)
	}
	return err
}

// diagnose reports problems in the outbox's report.
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
		if r.Age(s.OldestMoving) <= d.Limits.Lag && (s.Held || r.Age(s.Oldest) <= d.Limits.Lag) {
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
			d.find("poison", fmt.Sprintf("relays ended %s while they sent event %s of shard %d", words.Count(s.Attempts, "time"), s.Suspect, s.Shard),
				"it may be a poison message, which kills the process that sends it; after 3 times it is dead", d.command(s.Suspect, "explain"))
		} else if s.UncleanTakeovers > 1 {
			d.find("poison", fmt.Sprintf("shard %d had %s, and nothing was published in between", s.Shard, words.Count(s.UncleanTakeovers, "unclean takeover")),
				"an event of this shard kills relays, or something else does; its events are sent one by one to find out", status)
		}
	}
	if dead := r.Failed["dead"]; dead.N > 0 {
		d.find("outbox", fmt.Sprintf("%s %s dead in the outbox, and %v %s blocked", words.CountOf(dead, "event"), words.Pick(dead.N, "is", "are"), r.Failed["blocked"], words.Pick(r.Failed["blocked"].N, "is", "are")),
			"the broker refuses them, or they failed too often; they are not retried until an operator decides",
			d.command("", "outbox", "list", "--state", "dead")+"; then \"millrace outbox retry\" or \"millrace outbox discard\"")
	}
}

// waits describes a number of waiting events.
func waits(n outboxadmin.Count, oldest time.Duration) string {
	return fmt.Sprintf("%s %s waiting, the oldest for %s", words.CountOf(n, "event"), words.Pick(n.N, "is", "are"), words.Duration(oldest))
}

func relaysRun(n int) string {
	return words.Count(n, "relay") + " " + words.Pick(n, "runs", "run")
}

// unsent reports events that are not published in time. waiting is the number of shards with events; late of them are late and not
// already reported as stuck.
func (d *doctor) unsent(r *outboxadmin.Report, alive, late, waiting int) {
	log := "; see the log of the relays"
	overdue := r.NextDue != nil && r.Age(r.NextDue) > d.Limits.Lag
	var wait []string
	for _, w := range []struct {
		what string
		is   bool
	}{
		{waits(r.Pending, r.Age(r.Oldest)), r.Pending.N > 0},
		{fmt.Sprintf("%s %s to be retried", words.CountOf(r.Failed["retrying"], "failed event"), words.Pick(r.Failed["retrying"].N, "is", "are")), r.Failed["retrying"].N > 0},
		{"delayed events are overdue by " + words.Duration(r.Age(r.NextDue)), overdue},
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
		d.find("outbox", fmt.Sprintf("%d of %d shards have events that have waited for more than %v", late, waiting, d.Limits.Lag),
			"an event or a topic blocks these shards, while others go on", d.command("", "outbox", "status", "--shards")+log)
	}
	if alive > 0 && overdue {
		d.find("outbox", fmt.Sprintf("delayed events are overdue by %s, although %s", words.Duration(r.Age(r.NextDue)), relaysRun(alive)),
			"the relays cannot move them into the outbox: their role lacks a privilege, or a transaction locks the rows", d.command("", "migrate", "grants", "--relay", "ROLE")+log)
	}
}

// sequences checks what a restore of the database may have left behind.
func (d *doctor) sequences(ctx context.Context) error {
	if !d.there["outbox"] {
		return nil
	}
	found, err := outboxadmin.Check(ctx, d.pool, d.Schema, false)
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
	groups, err := deadletter.ListGroups(ctx, d.pool, d.Schema, deadletter.Selection{})
	if err != nil || len(groups) == 0 {
		return err
	}
	counts, err := deadletter.Counts(ctx, d.pool, d.Schema)
	if err != nil {
		return err
	}
	n, unidentified := 0, 0
	for _, states := range counts {
		n += states["dead"]
	}
	for _, g := range groups {
		if strings.Contains(g.Text, claim.ErrNoEventID.Error()) {
			unidentified += g.Events
		}
	}
	remedy := d.command("", "dead", "list", "--groups") + "; after a fix " + d.command("", "dead", "replay", "--group", groups[0].Group) + "; or \"millrace dead discard\""
	if unidentified > 0 {
		remedy = fmt.Sprintf("%s %s no event ID: before a replay set kafka.consumers.NAME.event_id (in Go, kafka.ConsumerConfig.EventID) to header:NAME, "+
			"json:PATH or offset, or pubsub.consumers.NAME.event_id (pubsub.SubscriptionConfig.EventID) to header:NAME, json:PATH or message_id, "+
			"and restart the service; then %s", words.Count(unidentified, "dead letter"), words.Pick(unidentified, "has", "have"), remedy)
	}
	d.find("dead-letters", fmt.Sprintf("%s with %s", words.Count(n, "dead letter"), words.CountOf(outboxadmin.Count{N: int64(len(groups)), AtLeast: len(groups) == deadletter.MaxGroups}, "different error")),
		fmt.Sprintf("handlers failed; the most frequent error (%s): %s", words.Count(groups[0].Events, "event"), words.Beginning(groups[0].Text)),
		remedy)
	return nil
}

// now returns the server's time.
func (d *doctor) now(ctx context.Context) (now time.Time, err error) {
	err = d.pool.QueryRow(ctx, `select now()`).Scan(&now)
	return now, err
}

// paused reports consumers that have paused because event after event failed.
func (d *doctor) paused(ctx context.Context) error {
	if !d.there["claim"] {
		return nil
	}
	now, err := d.now(ctx)
	if err != nil {
		return err
	}
	found, err := claim.Pauses(ctx, d.pool, d.Schema)
	for _, p := range found {
		d.find("paused", fmt.Sprintf("consumer %s has been paused for %s in process %s", p.Consumer, words.Duration(now.Sub(p.Since)), p.Process),
			"its events failed one after the other, the last one with: "+words.Beginning(p.Error),
			"repair what the handler needs, and the consumer goes on by itself; if only some events are at fault, mark their errors with claim.Permanent; the events that failed: "+
				d.command("", "dead", "list", "--state", "retrying", "--consumer", p.Consumer))
	}
	return err
}

// full reports keys for which the database stores no further events.
func (d *doctor) full(ctx context.Context) error {
	if !d.there["claim"] {
		return nil
	}
	now, err := d.now(ctx)
	if err != nil {
		return err
	}
	const limit = 10
	found, err := claim.FullKeys(ctx, d.pool, d.Schema, limit)
	for _, k := range found {
		d.find("full-keys", fmt.Sprintf("key %s of consumer %s has been full for %s: %s %s behind one that failed, and the broker keeps the next ones",
			words.OneLine(k.Key), k.Consumer, words.Duration(now.Sub(k.Since)), words.Count(k.Blocked, "event"), words.Pick(k.Blocked, "waits", "wait")),
			"the first event of the key is a dead letter or retried, and as many as claim.max_blocked allows wait behind it; what the broker keeps may hold up events of other keys, too",
			"repair the handler, then replay or discard the first event of the key: "+d.command("", "dead", "list", "--consumer", k.Consumer, "--key", k.Key, "--state", "all")+"; or raise claim.max_blocked")
	}
	return err
}

// retries reports events that no process retries. Paused consumers are reported by another check.
func (d *doctor) retries(ctx context.Context) error {
	if !d.there["claim"] {
		return nil
	}
	now, err := d.now(ctx)
	if err != nil {
		return err
	}
	found, err := deadletter.List(ctx, d.pool, d.Schema, deadletter.Listing{Selection: deadletter.Selection{States: []string{"retrying"}}, Limit: 1000})
	overdue := map[string]int{}
	pauses, perr := claim.Pauses(ctx, d.pool, d.Schema)
	for _, f := range found {
		paused := slices.ContainsFunc(pauses, func(p claim.Pause) bool { return p.Consumer == f.Consumer })
		if f.Due != nil && !paused && now.Sub(*f.Due) > d.Limits.Lag {
			overdue[f.Consumer]++
		}
	}
	for _, consumer := range slices.Sorted(maps.Keys(overdue)) {
		d.find("retries", fmt.Sprintf("%s of consumer %s %s overdue for a retry", words.Count(overdue[consumer], "event"), consumer, words.Pick(overdue[consumer], "is", "are")),
			"no service of this consumer runs, or all its handlers are busy, or it has a router of its own and its subscriber is not wrapped by Claim.Subscriber", "start the service; "+d.command("", "dead", "list", "--state", "retrying", "--consumer", consumer))
	}
	return errors.Join(err, perr)
}

// poison reports events that may end the processes of consumers.
func (d *doctor) poison(ctx context.Context) error {
	if !d.there["claim"] {
		return nil
	}
	found, err := claim.Suspects(ctx, d.pool, d.Schema, 10)
	for _, s := range found {
		d.find("poison", fmt.Sprintf("consumer %s started the event with record %s alone %s, and never finished it", s.Consumer, s.Record, words.Count(s.Starts, "time")),
			"it was in flight when a process was killed, and may be a poison message; after claim.max_starts (3) times it becomes a dead letter", d.command(s.Record, "explain")+"; see the log of the service")
	}
	return err
}

func (d *doctor) effects(ctx context.Context) error {
	if !d.there["effect"] {
		return nil
	}
	const limit = 1000
	found, err := effect.List(ctx, d.pool, d.Schema, effect.Listing{Limit: limit})
	if err != nil || len(found) == 0 {
		return err
	}
	n := outboxadmin.Count{N: int64(len(found)), AtLeast: len(found) == limit}
	cause := "a process died between the call of a provider and its record, or the provider gave no answer"
	if reason := words.Beginning(found[0].Reason); reason != "" {
		cause += ": " + reason
	}
	d.find("effects", fmt.Sprintf("%s %s in doubt or in conflict, the first one since %s", words.CountOf(n, "effect"), words.Pick(n.N, "is", "are"), found[0].Until.UTC().Format(time.RFC3339)),
		cause, d.command("", "effect", "list")+"; ask the provider by the idempotency key, then run "+d.command(found[0].Key, "effect", "resolve", "--done")+", or --not-done")
	return nil
}

// topics reports topics whose events wait for an operator or for the broker.
func (d *doctor) topics(r *outboxadmin.Report) {
	for _, t := range r.Topics {
		since := words.Duration(r.Age(t.Since))
		switch _, why := words.TopicState(r, t); {
		case t.State == outboxadmin.TopicPaused && t.Pending == outboxadmin.Count{}:
			d.note("outbox", fmt.Sprintf("topic %s has been paused for %s", t.Topic, since))
		case t.State == outboxadmin.TopicRedirected:
			d.note("outbox", fmt.Sprintf("events of topic %s have been published to %s for %s", t.Topic, t.To, since))
		case t.State == outboxadmin.TopicPaused:
			remedy := d.command(t.Topic, "outbox", "topic", "resume")
			if t.To != "" { // either of the two may be paused
				remedy += "; or " + d.command(t.To, "outbox", "topic", "resume")
			}
			d.find("outbox", fmt.Sprintf("topic %s has been paused for %s, and %s", t.Topic, since, topicWaits(t)),
				strings.TrimSuffix("an operator paused it: "+why, ": "), remedy)
		case t.State == outboxadmin.TopicFailing && r.Age(t.Since) > d.Limits.Lag:
			d.find("outbox", fmt.Sprintf("the broker has taken no event of topic %s for %s, and %s", t.Topic, since, topicWaits(t)),
				"the publisher's last error: "+words.OneLine(t.Reason), "repair the topic or the relay's right to write to it, then relays go on; see: "+d.withBroker("doctor"))
		}
	}
}

func topicWaits(t outboxadmin.TopicReport) string {
	if !t.Pending.Known() {
		return "its events were not counted, because others wait before them"
	}
	return fmt.Sprintf("%s %s waiting", words.CountOf(t.Pending, "event"), words.Pick(t.Pending.N, "is", "are"))
}
