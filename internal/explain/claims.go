package explain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

func (e *evidence) withConsumers() (all []Stage) {
	if e.claims == nil {
		return nil
	}
	var unseen []string
	for _, l := range *e.claims {
		if s := e.withConsumer(l); s.State != "" {
			all = append(all, s)
			continue
		}
		unseen = append(unseen, l.Consumer)
	}
	if len(*e.claims) == 0 {
		return []Stage{{Place: "claim", State: "not seen", Why: "No consumer has claimed any event in this schema."}}
	}
	if len(unseen) > 0 {
		all = append(all, Stage{
			Place: "claim", State: "not seen",
			Why: "Not seen by " + words.OneLine(strings.Join(unseen, ", ")) + ": the event has not arrived there, does not go there, or its claim was rolled back without a failed attempt.",
		})
	}
	return all
}

func (e *evidence) withConsumer(l deadletter.Location) Stage {
	s := Stage{Place: "claim", Of: l.Consumer}
	show := e.Command(e.eventID, "dead", "show", "--consumer", l.Consumer)
	switch f := l.Failed; {
	case f == nil && l.Claimed != nil:
		s.done(e, l)
	case l.Holder != nil:
		s.inFlight(e, l)
	case f != nil:
		s.failed(e, l, show)
	case l.Behind != "":
		s.State, s.Next = "will be blocked", []string{e.Command(l.Behind, "explain")}
		s.Why = fmt.Sprintf("When it arrives it will wait behind event %s of the same key, which is %s.", words.OneLine(l.Behind), words.ClaimStates.Of(l.BehindState))
	case l.TooOld:
		s.State = "too old"
		s.Why = "It is older than this consumer's retention watermark of " + words.When(e.now, *l.Floor) +
			". If it is delivered now it becomes a dead letter, because nobody knows whether it was processed, unless claim.run_too_old is set."
	}
	if l.Starts != nil {
		s.State = cmp.Or(s.State, "suspect")
		s.Why = strings.TrimSpace(s.Why + fmt.Sprintf(" It was in flight when a process was killed, and may be a poison message: it was started alone %s since.", words.Count(*l.Starts, "time")))
	}
	return s
}

// done describes an event that this consumer has settled.
func (s *Stage) done(e *evidence, l deadletter.Location) {
	s.State, s.Why, s.At, s.End = "completed", "Recorded "+words.When(e.now, *l.Claimed)+".", l.Claimed, l.Committed
	if l.Kept { // its record is of then
		s.Why, s.At = "It did not succeed at first, and was kept since "+words.When(e.now, *l.Claimed)+". When it was handled is not recorded.", nil
	}
	if a := decision(l); a != nil {
		by := words.OneLine(a.Actor) + ", " + words.When(e.now, a.At) + note(*a)
		switch a.Action {
		case "replay":
			s.Why += " It was replayed by " + by + "."
		case "redirect":
			s.At, s.End = &a.At, nil
			s.State, s.Why = "redirected", "It was not handled here: it was redirected to "+redirectedTo(*a)+" by "+by+"."
		default:
			s.At, s.End = &a.At, nil
			s.State, s.Why = "discarded", "It was not handled: it was discarded by "+by+"."
		}
	}
	s.Why += " If it is delivered again it is ignored."
	if l.Holder != nil {
		s.Why += fmt.Sprintf(" Session %d is ignoring one now.", l.Holder.PID)
	}
}

// decision returns the last action of an operator on a settled event (replay, redirect, discard or purge), or nil.
func decision(l deadletter.Location) *deadletter.Audit {
	for i, a := range l.Audit { // the newest first
		if a.Action == "replay" || a.Action == "redirect" || a.Action == "discard" || a.Action == "purge" {
			return &l.Audit[i]
		}
	}
	return nil
}

// redirectedTo returns the name of the other consumer.
func redirectedTo(a deadletter.Audit) string {
	var detail struct{ To string }
	if json.Unmarshal(a.Detail, &detail) != nil || detail.To == "" {
		return "another consumer"
	}
	return words.OneLine(detail.To)
}

// note returns an operator's note.
func note(a deadletter.Audit) string {
	var detail struct{ Note string }
	if json.Unmarshal(a.Detail, &detail) != nil || detail.Note == "" {
		return ""
	}
	return ": " + words.OneLine(words.Beginning(detail.Note))
}

// inFlight describes an event whose handler runs.
func (s *Stage) inFlight(e *evidence, l deadletter.Location) {
	s.State = "in flight"
	s.Why = fmt.Sprintf("Session %d is handling it", l.Holder.PID)
	if who := strings.TrimSpace(l.Holder.Application + " " + l.Holder.Client); who != "" {
		s.Why += " (" + words.OneLine(who) + ")"
	}
	since := l.Holder.Since
	s.At = since
	if since != nil {
		s.Why += "; it began " + words.When(e.now, *since)
	}
	s.Why += "."
	if since != nil && e.now.Sub(*since) > longAgo {
		s.Why += " If its process is gone, the server ends the session shortly after claim.handler_timeout."
		s.Next = []string{e.PSQL("", fmt.Sprintf("select pg_terminate_backend(%d)", l.Holder.PID))}
	}
	if f := l.Failed; f != nil && f.Attempts > 0 {
		s.Why += fmt.Sprintf(" Before, %s: %s", words.HaveFailed(f.Attempts), words.OneLine(words.Beginning(f.Error)))
	}
}

// failed describes an event that was not handled.
func (s *Stage) failed(e *evidence, l deadletter.Location, show string) {
	f := l.Failed
	s.State, s.At, s.Attempts = words.ClaimStates.Of(f.State), &f.First, f.History
	switch f.State {
	case "nacked":
		s.Why, s.Next = e.attempts(f)+". The broker redelivers it.", []string{show}
	case "retrying":
		s.Why, s.Next = e.attempts(f)+".", []string{show}
		if f.Due != nil && f.Due.After(e.now) {
			s.Why += " The next attempt is due " + words.When(e.now, *f.Due) + "."
		} else if f.Due != nil {
			s.Why += " The next attempt was due " + words.When(e.now, *f.Due) + ": it waits for a running service of this consumer. " +
				"If one runs with a router of its own, its subscriber must be wrapped by Claim.Subscriber."
		}
	case "blocked":
		s.Why = fmt.Sprintf("It waits behind event %s of the same key, which is %s.", words.OneLine(l.Behind), words.ClaimStates.Of(l.BehindState))
		s.Next = []string{e.Command(l.Behind, "explain")}
		if l.Behind == "" {
			s.Why, s.Next = "It waited behind another event of the same key, which is gone: its consumer handles it within a minute.", nil
		}
	case "dead":
		s.Why = words.DeadReasons[f.Reason] + " " + e.attempts(f) + "."
		if f.Attempts == 0 {
			s.Why = fmt.Sprintf("%s It failed %s: %s", words.DeadReasons[f.Reason], words.When(e.now, f.Failed), words.OneLine(words.Beginning(f.Error)))
		}
		s.Next = []string{
			show, e.Command(e.eventID, "dead", "replay", "--consumer", l.Consumer), e.Command(e.eventID, "dead", "discard", "--consumer", l.Consumer),
		}
	}
}

// attempts describes how often an event has failed, and the last error.
func (e *evidence) attempts(f *deadletter.Event) string {
	last := fmt.Sprintf("the last error was %s: %s", words.When(e.now, f.Failed), words.OneLine(words.Beginning(f.Error)))
	switch {
	case f.Attempts == 0 && f.Error == "":
		return "It was blocked by an earlier event of the same key, and no attempt has failed"
	case f.Replayed && f.Attempts == 0:
		return "An operator has replayed it, and no attempt has failed since; " + last
	case f.Replayed:
		return "An operator has replayed it. Since then " + words.HaveFailed(f.Attempts) + "; " + last
	case f.Attempts == 0:
		return "No attempt has failed since; " + last
	}
	return words.Sentence(words.HaveFailed(f.Attempts)) + "; " + last
}
