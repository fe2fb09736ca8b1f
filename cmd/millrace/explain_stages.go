package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
)

// explain concludes from the evidence.
func (e *evidence) explain() explanation {
	x := explanation{EventID: e.eventID, Minted: minted(e.eventID), Topic: e.topic(), Key: e.key(), Trace: e.trace(), Cause: e.cause(), Now: e.now}
	if !e.due.IsZero() {
		x.Due = &e.due
	}
	if x.Known = e.known(); !x.Known {
		x.Stages = []stage{e.unknown()}
		return x
	}
	x.Stages = append(e.inOutbox(), e.atBroker())
	x.Stages = append(x.Stages, e.withConsumers()...)
	x.Stages = append(x.Stages, e.copied()...)
	x.Stages = append(x.Stages, e.effected()...)
	x.Stages = append(x.Stages, e.published()...)
	return x
}

// known reports whether anything is.
func (e *evidence) known() bool {
	return e.outbox != nil && len(*e.outbox) > 0 || len(e.copies) > 0 || len(e.failed) > 0 || e.arrived() || e.effects != nil && len(*e.effects) > 0
}

func (e *evidence) unknown() stage {
	why := "no table has it: its transaction has not committed, or was rolled back; or it was never published, or cancelled before it was due; or it " +
		"is done and forgotten: what was published leaves the outbox unless relays archive, consumers forget after their retention, and " +
		"those without a claim in this database leave no trace in it"
	if e.claims != nil {
		for _, l := range *e.claims {
			if l.TooOld {
				return stage{Place: "event", State: "unknown", Why: why + ". It is older than what " + l.Consumer + " remembers, since " + when(e.now, *l.Floor)}
			}
		}
	}
	return stage{Place: "event", State: "unknown", Why: why + ". A delayed event that was delivered is found by --due alone"}
}

// arrived reports whether a consumer has met the event.
func (e *evidence) arrived() bool {
	return e.claims != nil && slices.ContainsFunc(*e.claims, met)
}

func met(l claim.Location) bool {
	return l.Claimed != nil || l.Failed != nil || l.Holder != nil || l.Starts != nil
}

func (e *evidence) inOutbox() (all []stage) {
	if e.outbox == nil {
		return nil
	}
	for _, l := range *e.outbox {
		s := stage{Place: "outbox"}
		since, at := "written "+when(e.now, l.Written), l.Written
		if l.At != nil { // which a change by hand may have taken away
			at = *l.At
		}
		reason := oneLine(beginning(l.Reason))
		switch l.State {
		case "outbox":
			e.unpublished(&s, l, since)
		case "delayed":
			s.State, s.Why = "delayed", "it enters the outbox when it is due, "+when(e.now, at)+"; until then its publisher can cancel it"
			if !at.After(e.now) {
				s.Why = e.overdue(&s, l, at)
			}
			s.Why += "; " + since
		case "retry":
			s.State = "to be retried"
			if at.After(e.now) {
				s.Why = fmt.Sprintf("%s, the next one is %s: %s; %s", haveFailed(l.Attempts), when(e.now, at), reason, since)
				s.Next = []string{e.command(e.eventID, "outbox", "retry")}
			} else { // to retry it now is no remedy
				s.Why = fmt.Sprintf("%s: %s; %s; %s", haveFailed(l.Attempts), reason, e.overdue(&s, l, at), since)
			}
		case "queued":
			if e.behind(&s, l); l.Behind == "" {
				s.State, s.Why = "waiting", "it waited behind another event of its key that is gone: the relay that holds its shard takes it up"
				s.Next = []string{e.command("", "outbox", "status")}
			}
			s.Why += "; " + since
		case "parked":
			s.State, s.Why = "parked", fmt.Sprintf("it could not be published: %s; it is aside since %s: %s; %s", haveFailed(l.Attempts), when(e.now, at), reason, since)
			s.Next = []string{e.command(e.eventID, "outbox", "retry"), e.command(e.eventID, "outbox", "discard")}
		case "dead":
			s.State, s.Why = "discarded", "an operator gave it up, it is not published: "+cmp.Or(reason, "it waited behind another one")+"; "+since
			s.Next = []string{e.command(e.eventID, "outbox", "retry")}
		case "archived":
			s.State, s.Why = "published", "it was published "+when(e.now, at)+", and is archived; "+since
		}
		if l.Command != "" {
			s.Why += "; an operator wants " + l.Command + ", which the next relay does"
			s.Next = []string{e.command("", "outbox", "status")}
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		all = []stage{{Place: "outbox", State: "gone", Why: "it is not there: it was published, and is not archived; or it came from elsewhere"}}
	}
	return all
}

// longAgo is for how long an event may be on its way before that wants an explanation.
const longAgo = time.Minute

// unpublished is for an event in the outbox itself.
func (e *evidence) unpublished(s *stage, l outbox.Location, since string) {
	before := fmt.Sprintf("%v events of the shard are before it", l.Before)
	switch {
	case l.Behind != "":
		e.behind(s, l)
	case !l.Held:
		s.State, s.Why = "waiting", fmt.Sprintf("no relay holds its shard %d; %s", l.Shard, before)
		s.Next = []string{e.command("", "outbox", "status"), e.command("", "doctor")}
	case e.now.Sub(l.Written) > longAgo:
		s.State = "waiting"
		s.Why = fmt.Sprintf("relay %s holds its shard %d, and does not get it published: the broker is down or refuses, or there is more than it takes; the relay's log tells; %s",
			oneLine(l.Relay), l.Shard, before)
		s.Next = []string{e.command("", "outbox", "status"), e.command("", "doctor")}
	default:
		s.State, s.Why = "on its way", fmt.Sprintf("relay %s holds its shard %d; %s", oneLine(l.Relay), l.Shard, before)
	}
	if l.Suspect {
		s.Why += fmt.Sprintf("; it is sent alone, because it may end its relays: %d have ended over it", l.Deaths)
	}
	s.Why += "; " + since
}

// overdue is for an event whose time has come, and which waits for a relay.
func (e *evidence) overdue(s *stage, l outbox.Location, at time.Time) string {
	s.Next = []string{e.command("", "outbox", "status"), e.command("", "doctor")}
	why := "it is due since " + when(e.now, at)
	if !l.Held {
		return fmt.Sprintf("%s, and no relay holds its shard %d", why, l.Shard)
	}
	return fmt.Sprintf("%s, for relay %s, which holds its shard %d", why, oneLine(l.Relay), l.Shard)
}

// behind is for an event that waits for another one of its key.
func (e *evidence) behind(s *stage, l outbox.Location) {
	s.State, s.Why = "behind another", fmt.Sprintf("event %s of its key is to be published before it, and is %s", oneLine(l.Behind), outboxStates[l.BehindState])
	s.Next = []string{e.command(l.Behind, "explain")}
}

func haveFailed(attempts int) string {
	if attempts == 1 {
		return "1 attempt has failed"
	}
	return fmt.Sprintf("%d attempts have failed", attempts)
}

var outboxStates = map[string]string{"retry": "to be retried", "queued": "behind another one itself", "parked": "parked"}

// atBroker is concluded from both ends.
func (e *evidence) atBroker() stage {
	s := stage{Place: "broker"}
	published, waits, discarded := false, false, false
	if e.outbox != nil {
		for _, l := range *e.outbox {
			published = published || l.State == "archived"
			discarded = discarded || l.State == "dead"
			waits = waits || l.State != "archived" && l.State != "dead"
		}
	}
	switch {
	case e.arrived():
		s.State, s.Why = "handed over", "a consumer has met it"
		if waits {
			s.Why += ", though the outbox still has it: it may be delivered again, and that is absorbed"
		}
	case published:
		s.State, s.Why = "handed over", "it has acknowledged the event; no consumer with claims in this schema has met it"
	case waits:
		s.State, s.Why = "not yet", "the outbox has it, and no acknowledgement is recorded"
	case discarded:
		s.State, s.Why = "not at all", "it was given up"
	case e.effects != nil && len(*e.effects) > 0:
		s.State, s.Why = "handed over", "effects were had of it"
	default:
		s.State, s.Why = "unknown", "neither the outbox nor a consumer has it"
	}
	return s
}

func (e *evidence) effected() (all []stage) {
	if e.effects == nil {
		return nil
	}
	for _, f := range *e.effects {
		s := stage{Place: "effect", Of: f.Key}
		switch f.State {
		case "running":
			s.State, s.Why = "running", "called "+when(e.now, f.CalledAt)+"; without an answer it is in doubt "+when(e.now, f.Until)
		case "doubt":
			s.State, s.Why = "in doubt", "nobody knows whether it happened, since "+when(e.now, f.Until)+": "+cmp.Or(oneLine(beginning(f.Reason)), "its process gave no answer")
			s.Next = e.resolutions(f)
		case "done":
			s.State, s.Why = "done", settled(e, f)
		case "not_done":
			s.State, s.Why = "not done", settled(e, f)+": "+oneLine(beginning(f.Reason))
		}
		if f.Conflicts > 0 {
			s.State += ", in conflict"
			s.Why += "; it has probably happened twice"
			s.Next = []string{e.command(f.Key, "effect", "resolve", "--done")}
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		all = []stage{{Place: "effect", State: "none", Why: "no effect in the ledger has a key with the event's ID"}}
	}
	return all
}

func settled(e *evidence, f effect.Entry) string {
	text := "1 call"
	if f.Calls != 1 {
		text = fmt.Sprintf("%d calls", f.Calls)
	}
	if f.SettledAt != nil {
		text += ", settled " + when(e.now, *f.SettledAt) + " by " + oneLine(f.SettledBy)
	}
	return text
}

func (e *evidence) resolutions(f effect.Entry) []string {
	return []string{e.command(f.Key, "effect", "resolve", "--done"), e.command(f.Key, "effect", "resolve", "--not-done")}
}

// places are states of a copy, and of an output.
var places = map[string]string{
	"outbox": "in the outbox", "delayed": "delayed", "retry": "to be retried", "queued": "behind another", "parked": "parked", "dead": "discarded", "archived": "published",
}

// copied is about copies for a topic of dead letters, which go through the outbox under the event's ID.
func (e *evidence) copied() (all []stage) {
	for _, l := range e.copies {
		all = append(all, stage{
			Place: "copy", Of: l.Topic, State: places[l.State],
			Why: "as a dead letter of consumer " + oneLine(l.Metadata[claim.DeadConsumerMetadata]) + ", written " + when(e.now, l.Written),
		})
	}
	return all
}

// published is about what its handlers published.
func (e *evidence) published() (all []stage) {
	_, completed := e.completed()
	reach := "those that were sent are gone, because relays keep no archive"
	if !e.kept.IsZero() {
		reach = "those that were sent are known while relays archive them, now since " + e.kept.Format(time.DateOnly)
	}
	if t := e.trace(); t != "" {
		reach += "; the trace " + oneLine(t) + " has all"
	}
	switch {
	case e.endless:
		return []stage{{Place: "output", State: "not known", Why: fmt.Sprintf("the outbox and the archive are too large to look for them within %v", outputsPatience)}}
	case e.outputs == nil && !e.arrived():
		return nil
	case !completed:
		return []stage{{Place: "output", State: "none", Why: "no consumer has completed it"}}
	case e.outputs == nil:
		return nil
	case len(*e.outputs) == 0:
		return []stage{{Place: "output", State: "none found", Why: "its handlers published nothing through the outbox, or it was sent: " + reach}}
	}
	for _, o := range *e.outputs {
		s := stage{Place: "output", Of: o.EventID, State: places[o.State], Why: "topic " + oneLine(o.Topic)}
		if o.Key != "" {
			s.Why += ", key " + oneLine(o.Key)
		}
		if s.Why += ", written " + when(e.now, o.Written); o.EventID != e.eventID {
			s.Next = []string{e.command(o.EventID, "explain")}
		}
		all = append(all, s)
	}
	if len(all) == maxOutputs {
		all = append(all, stage{Place: "output", State: "and more", Why: fmt.Sprintf("these are the first %d", maxOutputs)})
	}
	return all
}
