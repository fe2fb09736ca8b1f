package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// explain builds the explanation from the evidence.
func (e *evidence) explain() Explanation {
	x := Explanation{EventID: e.eventID, Minted: minted(e.eventID), Topic: e.topic(), Key: e.key(), Trace: e.trace(), Cause: e.cause(), Relay: e.relay(), Origin: e.origin(), Now: e.now}
	if !e.due.IsZero() {
		x.Due = &e.due
	}
	if x.Known = e.known(); !x.Known {
		x.Stages = []Stage{e.unknown()}
		return x
	}
	x.Stages = append(e.inOutbox(), e.atBroker())
	x.Stages = append(x.Stages, e.withConsumers()...)
	x.Stages = append(x.Stages, e.copied()...)
	x.Stages = append(x.Stages, e.effected()...)
	x.Stages = append(x.Stages, e.published()...)
	return x
}

// known reports whether anything is known about the event.
func (e *evidence) known() bool {
	return e.outbox != nil && len(*e.outbox) > 0 || len(e.copies) > 0 || len(e.failed) > 0 || e.arrived() || e.effects != nil && len(*e.effects) > 0
}

// unknown describes where the event was searched, and why it may not have been found.
func (e *evidence) unknown() Stage {
	var searched []string
	if e.outbox != nil {
		of := "the outbox with its failed, delayed and archived events"
		if e.unread {
			of = "the outbox's failed, delayed and archived events, but not the outbox itself, which is too large to be searched here"
		}
		searched = append(searched, of)
	}
	if e.claims != nil {
		of := "consumers, of which there are none yet"
		if len(*e.claims) > 0 {
			names := make([]string, len(*e.claims))
			for i, l := range *e.claims {
				names[i] = l.Consumer
			}
			of = words.OneLine(strings.Join(names, ", "))
		}
		searched = append(searched, "the records and failed events of "+of)
	}
	if e.effects != nil {
		searched = append(searched, "the effects that handlers of the event called")
	}
	s := Stage{Place: "event", State: "unknown"}
	if e.unread {
		s.Next = []string{e.Command(e.eventID, "explain")}
	}
	s.Why = fmt.Sprintf("Schema %q has no event with this ID. Searched: %s. Perhaps its transaction has not committed, or was rolled back; or the event was "+
		"cancelled before it was due; or it was published and is not archived, and no consumer with claims in this schema has received it, or its record is "+
		"older than the retention. A delayed event that was delivered is found only with --due.", e.inSchema, strings.Join(searched, "; "))
	if l := e.landing; l != nil && l.Behind > 0 {
		s.Why += " Or it is in the write-ahead log, and no relay has made a row of it yet: " + words.Bytes(l.Behind) + " of WAL may have such events."
		if !l.Read {
			s.Why += " No relay reads it."
			s.Next = []string{e.Command("", "doctor")}
		}
	}
	if e.claims != nil {
		for _, l := range *e.claims {
			if l.TooOld {
				s.Why += " It is older than the retention watermark of consumer " + words.OneLine(l.Consumer) + ", " + words.When(e.now, *l.Floor) + "."
				break
			}
		}
	}
	return s
}

// arrived reports whether the event has reached a consumer.
func (e *evidence) arrived() bool {
	return e.claims != nil && slices.ContainsFunc(*e.claims, met)
}

func met(l deadletter.Location) bool {
	return l.Claimed != nil || l.Failed != nil || l.Holder != nil || l.Starts != nil
}

func (e *evidence) inOutbox() (all []Stage) {
	if e.outbox == nil {
		return nil
	}
	for _, l := range *e.outbox {
		all = append(all, e.atOutbox(l))
	}
	switch {
	case len(all) > 0:
	case e.unread:
		all = []Stage{{Place: "outbox", State: "not known", Why: "The outbox is too large to be searched here.", Next: []string{e.Command(e.eventID, "explain")}}}
	default:
		all = []Stage{{Place: "outbox", State: "not there", Why: "The relay deletes an event after it was published (outbox.archive keeps it). Or the event never was in this outbox."}}
	}
	return all
}

// atOutbox describes one row of the event.
func (e *evidence) atOutbox(l outboxadmin.Location) Stage {
	s := Stage{Place: "outbox", State: l.State, At: &l.Written}
	at := l.Written
	if l.At != nil { // it may be missing after a manual change
		at = *l.At
	}
	reason := words.OneLine(words.Beginning(l.Reason))
	switch l.State {
	case "pending":
		e.unpublished(&s, l)
	case "delayed":
		s.Why = "It enters the outbox when it is due, " + words.When(e.now, at) + "; until then its publisher can cancel it."
		if !at.After(e.now) {
			s.Why = e.overdue(&s, l, at)
		}
	case "retrying":
		s.Why = fmt.Sprintf("%s: %s.", words.Sentence(words.HaveFailed(l.Attempts)), reason)
		if at.After(e.now) {
			s.Why += " The next attempt is due " + words.When(e.now, at) + "."
			s.Next = []string{e.Command(e.eventID, "outbox", "retry")}
		} else { // retrying it now would not help
			s.Why += " " + e.overdue(&s, l, at)
		}
	case "blocked":
		if e.behind(&s, l); l.Behind == "" {
			s.Why = "It waited behind another event of the same key, which is gone: the relay that holds its shard takes it up."
			s.Next = []string{e.Command("", "outbox", "status")}
		}
	case "dead":
		s.Why = fmt.Sprintf("Publishing failed for good %s: %s: %s. An operator decides what happens to it.", words.When(e.now, at), words.HaveFailed(l.Attempts), reason)
		s.Next = []string{e.Command(e.eventID, "outbox", "retry"), e.Command(e.eventID, "outbox", "discard")}
	case "discarded":
		s.Why = "An operator discarded it, and it is not published. Its error was: " + cmp.Or(reason, "none, it was blocked by another event") + "."
		s.Next = []string{e.Command(e.eventID, "outbox", "retry")}
	case "archived":
		s.End = &at
		s.Why = "It was published " + words.When(e.now, at) + by(l) + ", and is archived."
	}
	s.Why += " Written " + words.When(e.now, l.Written) + "."
	if l.Command != "" {
		s.Why += fmt.Sprintf(" An operator asked to %s it; the next relay that runs does so.", l.Command)
		s.Next = []string{e.Command("", "outbox", "status")}
	}
	return s
}

// by says which relay has sent an archived event, and how often.
func by(l outboxadmin.Location) (text string) {
	if l.Relay != "" {
		text = " by relay " + words.OneLine(l.Relay)
	}
	if l.Attempts > 1 {
		text += fmt.Sprintf(" at attempt %d", l.Attempts)
	}
	return text
}

// longAgo is how long an event may be on its way before that needs an explanation.
const longAgo = time.Minute

// unpublished describes an event in the outbox table itself.
func (e *evidence) unpublished(s *Stage, l outboxadmin.Location) {
	before := "It is the next one of its shard."
	if l.Before.N > 0 {
		before = fmt.Sprintf("%s of its shard %s published before it.", words.CountOf(l.Before, "event"), words.Pick(l.Before.N, "is", "are"))
	}
	switch {
	case l.Behind != "":
		e.behind(s, l)
	case !l.Held:
		s.Why = fmt.Sprintf("No relay holds its shard %d. %s", l.Shard, before)
		s.Next = []string{e.Command("", "outbox", "status"), e.Command("", "doctor")}
	case e.now.Sub(l.Written) > longAgo:
		s.Why = fmt.Sprintf("Relay %s holds its shard %d, but cannot publish it: the broker is down or refuses it, or more events come than the relay can publish. See the relay's log. %s",
			words.OneLine(l.Relay), l.Shard, before)
		s.Next = []string{e.Command("", "outbox", "status"), e.Command("", "doctor")}
	default:
		s.Why = fmt.Sprintf("Relay %s holds its shard %d and is about to publish it. %s", words.OneLine(l.Relay), l.Shard, before)
	}
	if l.Suspect {
		s.Why += fmt.Sprintf(" It is sent alone, because it may be a poison message: %s ended while sending it.", words.Count(l.Deaths, "relay"))
	}
}

// overdue describes an event that is due and waits for a relay.
func (e *evidence) overdue(s *Stage, l outboxadmin.Location, at time.Time) string {
	s.Next = []string{e.Command("", "outbox", "status"), e.Command("", "doctor")}
	why := "It was due " + words.When(e.now, at)
	if !l.Held {
		return fmt.Sprintf("%s, but no relay holds its shard %d.", why, l.Shard)
	}
	return fmt.Sprintf("%s; relay %s, which holds its shard %d, has not taken it yet.", why, words.OneLine(l.Relay), l.Shard)
}

// behind describes an event that waits for another one of its key.
func (e *evidence) behind(s *Stage, l outboxadmin.Location) {
	s.State = "blocked"
	s.Why = fmt.Sprintf("It waits behind event %s of the same key, which is %s.", words.OneLine(l.Behind), l.BehindState)
	s.Next = []string{e.Command(l.Behind, "explain")}
}

// atBroker concludes from the outbox and the consumers.
func (e *evidence) atBroker() Stage {
	s := Stage{Place: "broker", End: e.reached()}
	published, waits, discarded := false, false, false
	if e.outbox != nil {
		for _, l := range *e.outbox {
			if l.State == "archived" {
				published, s.At = true, l.At
			}
			discarded = discarded || l.State == "discarded"
			waits = waits || l.State != "archived" && l.State != "discarded"
		}
	}
	switch {
	case e.arrived():
		s.State, s.Why = "received", "A consumer has received it."
		if waits {
			s.Why += " The outbox still has it, so it may be delivered again and will be ignored then."
		}
	case published:
		s.State, s.Why = "received", "The broker has acknowledged it. No consumer with claims in this schema has received it."
	case waits:
		s.State, s.Why = "not received", "The outbox still has the event: no acknowledgement is recorded."
	case discarded:
		s.State, s.Why = "not received", "The event was discarded before it was published."
	case e.effects != nil && len(*e.effects) > 0:
		s.State, s.Why = "received", "A handler recorded effects for it."
	case e.unread:
		s.State, s.Why = "unknown", "The outbox may have it, and no consumer has it."
	default:
		s.State, s.Why = "unknown", "Neither the outbox nor a consumer has it."
	}
	if at := e.origin(); at != "" {
		s.Why += " Its place there: " + at + "."
	}
	if s.End != nil && s.At != nil && s.End.Before(*s.At) { // the archive has a later copy
		s.At = nil
	}
	return s
}

// relay is the one that sent the event, if it is archived.
func (e *evidence) relay() string {
	if e.outbox != nil {
		for _, l := range *e.outbox {
			if l.State == "archived" {
				return l.Relay
			}
		}
	}
	return ""
}

// reached is when the first consumer began to handle the event; nil if that is not known, because a consumer had failed by then: only the
// end of a failed attempt is recorded.
func (e *evidence) reached() (first *time.Time) {
	if e.claims == nil {
		return nil
	}
	failed := false // a failure is the first thing that is known
	before := func(at time.Time) bool { return first == nil || at.Before(*first) }
	for _, l := range *e.claims {
		if l.Claimed != nil && before(*l.Claimed) {
			first, failed = l.Claimed, l.Kept
		}
		if l.Failed != nil && before(l.Failed.First) {
			first, failed = &l.Failed.First, true
		}
	}
	if failed {
		return nil
	}
	return first
}

// origin is the event's place at the broker, as a consumer that failed has kept it.
func (e *evidence) origin() string {
	for _, f := range e.failed {
		var parts []string
		for _, name := range []string{"partition", "offset", "message_id"} { // of Kafka, and of Pub/Sub
			if value := f.Origin[name]; value != "" {
				parts = append(parts, strings.ReplaceAll(name, "_", " ")+" "+words.OneLine(value))
			}
		}
		if len(parts) > 0 {
			return strings.Join(parts, ", ")
		}
	}
	return ""
}

func (e *evidence) effected() (all []Stage) {
	if e.effects == nil {
		return nil
	}
	for _, f := range *e.effects {
		s := Stage{Place: "effect", Of: f.Key, At: &f.CalledAt, End: f.SettledAt}
		switch f.State {
		case "running":
			s.State, s.Why = "running", "Called "+words.When(e.now, f.CalledAt)+". Without an answer it will be in doubt "+words.When(e.now, f.Until)+"."
		case "pending":
			s.State, s.Why = "pending", "The provider has taken it, and has not told its outcome yet. Without one it will be in doubt "+words.When(e.now, f.Until)+"."
		case "doubt":
			s.State = "doubt"
			s.Why = "Nobody knows whether it happened. It came into doubt " + words.When(e.now, f.Until) + ": " + cmp.Or(words.OneLine(words.Beginning(f.Reason)), "its process gave no answer")
			s.Next = e.resolutions(f)
		case "done":
			s.State, s.Why = "done", settled(e, f, "succeeded", "it was done")+"."
		case "not_done":
			s.State, s.Why = "not done", settled(e, f, "says that it was not done", "it was not done")
			if f.Reason != "" {
				s.Why += ": " + words.OneLine(words.Beginning(f.Reason))
			}
		}
		if f.Conflicts > 0 {
			s.State += ", in conflict"
			s.Why += " It has probably happened twice."
			s.Next = []string{e.Command(f.Key, "effect", "resolve", "--done")}
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		all = []Stage{{Place: "effect", State: "none", Why: "No handler of the event has called an effect."}}
	}
	return all
}

// settled describes how an effect was settled: by its last call, by the provider's answer to a query, or by an operator.
func settled(e *evidence, f effect.Entry, said, outcome string) string {
	calls := words.Count(f.Calls, "call")
	if f.SettledAt == nil {
		return calls
	}
	at := words.When(e.now, *f.SettledAt)
	switch f.SettledBy {
	case "call":
		return calls + words.Pick(f.Calls, ", ", "; the last one, ") + at + ", " + said
	case "reconcile":
		return calls + "; the provider was asked " + at + " and answered that " + outcome
	}
	return calls + "; " + words.OneLine(f.SettledBy) + " decided " + at + " that " + outcome
}

func (e *evidence) resolutions(f effect.Entry) []string {
	return []string{e.Command(f.Key, "effect", "resolve", "--done"), e.Command(f.Key, "effect", "resolve", "--not-done")}
}

// copied describes copies for a dead-letter topic, which go through the outbox under the event's ID.
func (e *evidence) copied() (all []Stage) {
	for _, l := range e.copies {
		all = append(all, Stage{
			Place: "copy", Of: l.Topic, State: l.State, At: &l.Written,
			Why: "A copy of the dead letter of consumer " + words.OneLine(l.Metadata[claim.DeadConsumerMetadata]) + ". Written " + words.When(e.now, l.Written) + ".",
		})
	}
	return all
}

// published describes what its handlers published.
func (e *evidence) published() (all []Stage) {
	_, completed := e.completed()
	kept := " (outbox.archive keeps it)."
	if !e.kept.IsZero() {
		kept = "; the archive has what was sent since " + e.kept.Format(time.DateOnly) + "."
	}
	if t := e.trace(); t != "" {
		kept += " The trace " + words.OneLine(t) + " has all of them."
	}
	switch {
	case e.endless:
		return []Stage{{Place: "output", State: "not known", Why: fmt.Sprintf("The outbox and the archive are too large to be searched within %s.", e.within)}}
	case e.outputs == nil && !e.arrived():
		return nil
	case !completed:
		return []Stage{{Place: "output", State: "none", Why: "No consumer has completed the event."}}
	case e.outputs == nil:
		return nil
	case len(*e.outputs) == 0:
		return []Stage{{Place: "output", State: "none found", Why: "Its handlers published nothing through the outbox, or the relay has sent and deleted what they published" + kept}}
	}
	for _, o := range *e.outputs {
		s := Stage{Place: "output", Of: o.EventID, State: o.State, At: &o.Written, Why: "Topic " + words.OneLine(o.Topic)}
		if o.Key != "" {
			s.Why += ", key " + words.OneLine(o.Key)
		}
		if s.Why += ". Written " + words.When(e.now, o.Written) + "."; o.EventID != e.eventID {
			s.Next = []string{e.Command(o.EventID, "explain")}
		}
		all = append(all, s)
	}
	if len(all) == maxOutputs {
		all = append(all, Stage{Place: "output", State: "and more", Why: fmt.Sprintf("These are the first %d.", maxOutputs)})
	}
	return all
}
