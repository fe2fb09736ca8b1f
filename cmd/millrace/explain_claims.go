package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/millrace-go/millrace/cmd/millrace/internal/output"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

func (e *evidence) withConsumers() (all []stage) {
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
		return []stage{{Place: "claim", State: "not seen", Why: "No consumer has claimed any event in this schema."}}
	}
	if len(unseen) > 0 {
		all = append(all, stage{
			Place: "claim", State: "not seen",
			Why: "Not seen by " + oneLine(strings.Join(unseen, ", ")) + ": the event has not arrived there, does not go there, or its claim was rolled back without a failed attempt.",
		})
	}
	return all
}

func (e *evidence) withConsumer(l deadletter.Location) stage {
	s := stage{Place: "claim", Of: l.Consumer}
	show := e.command(e.eventID, "dead", "show", "--consumer", l.Consumer)
	switch f := l.Failed; {
	case f == nil && l.Claimed != nil:
		s.done(e, l)
	case l.Holder != nil:
		s.inFlight(e, l)
	case f != nil:
		s.failed(e, l, show)
	case l.Behind != "":
		s.State, s.Next = "will be blocked", []string{e.command(l.Behind, "explain")}
		s.Why = fmt.Sprintf("When it arrives it will wait behind event %s of the same key, which is %s.", oneLine(l.Behind), claimStates.of(l.BehindState))
	case l.TooOld:
		s.State = "too old"
		s.Why = "It is older than this consumer's retention watermark of " + when(e.now, *l.Floor) +
			". If it is delivered now it becomes a dead letter, because nobody knows whether it was processed, unless claim.run_too_old is set."
	}
	if l.Starts != nil {
		s.State = cmp.Or(s.State, "suspect")
		s.Why = strings.TrimSpace(s.Why + fmt.Sprintf(" It was in flight when a process was killed, and may be a poison message: it was started alone %s since.", output.Count(*l.Starts, "time")))
	}
	return s
}

// done is for an event that this consumer has settled.
func (s *stage) done(e *evidence, l deadletter.Location) {
	s.State, s.Why = "completed", "Recorded "+when(e.now, *l.Claimed)+"."
	if a := decision(l); a != nil {
		by := oneLine(a.Actor) + ", " + when(e.now, a.At) + note(*a)
		if a.Action == "replay" {
			s.Why += " It was replayed by " + by + "."
		} else {
			s.State, s.Why = "discarded", "It was not handled: it was discarded by "+by+"."
		}
	}
	s.Why += " If it is delivered again it is ignored."
	if l.Holder != nil {
		s.Why += fmt.Sprintf(" Session %d is ignoring one now.", l.Holder.PID)
	}
}

// decision is the last one of an operator about an event that is settled: to replay or to discard it; nil for none.
func decision(l deadletter.Location) *deadletter.Audit {
	for i, a := range l.Audit { // the last first
		if a.Action == "replay" || a.Action == "discard" || a.Action == "purge" {
			return &l.Audit[i]
		}
	}
	return nil
}

// note is why an operator did something.
func note(a deadletter.Audit) string {
	var detail struct{ Note string }
	if json.Unmarshal(a.Detail, &detail) != nil || detail.Note == "" {
		return ""
	}
	return ": " + oneLine(beginning(detail.Note))
}

// inFlight is for an event whose handler runs.
func (s *stage) inFlight(e *evidence, l deadletter.Location) {
	s.State = "in flight"
	s.Why = fmt.Sprintf("Session %d is handling it", l.Holder.PID)
	if who := strings.TrimSpace(l.Holder.Application + " " + l.Holder.Client); who != "" {
		s.Why += " (" + oneLine(who) + ")"
	}
	since := l.Holder.Since
	if since != nil {
		s.Why += "; it began " + when(e.now, *since)
	}
	s.Why += "."
	if since != nil && e.now.Sub(*since) > longAgo {
		s.Why += " If its process is gone, the server ends the session shortly after claim.handler_timeout."
		s.Next = []string{e.psql("", fmt.Sprintf("select pg_terminate_backend(%d)", l.Holder.PID))}
	}
	if f := l.Failed; f != nil && f.Attempts > 0 {
		s.Why += fmt.Sprintf(" Before, %s: %s", haveFailed(f.Attempts), oneLine(beginning(f.Error)))
	}
}

// failed is for an event that was not handled.
func (s *stage) failed(e *evidence, l deadletter.Location, show string) {
	f := l.Failed
	s.State = claimStates.of(f.State)
	switch f.State {
	case "failing":
		s.Why, s.Next = e.attempts(f)+". The broker redelivers it.", []string{show}
	case "waiting":
		s.Why, s.Next = e.attempts(f)+".", []string{show}
		if f.Due != nil && f.Due.After(e.now) {
			s.Why += " The next attempt is due " + when(e.now, *f.Due) + "."
		} else if f.Due != nil {
			s.Why += " The next attempt was due " + when(e.now, *f.Due) + ": it waits for a running service of this consumer. " +
				"If one runs with a router of its own, its subscriber must be wrapped by Claim.Subscriber."
		}
	case "parked":
		s.Why = fmt.Sprintf("It waits behind event %s of the same key, which is %s.", oneLine(l.Behind), claimStates.of(l.BehindState))
		s.Next = []string{e.command(l.Behind, "explain")}
		if l.Behind == "" {
			s.Why, s.Next = "It waited behind another event of the same key, which is gone: its consumer handles it within a minute.", nil
		}
	case "dead":
		s.Why = deadReasons[f.Reason] + " " + e.attempts(f) + "."
		if f.Attempts == 0 {
			s.Why = fmt.Sprintf("%s It failed %s: %s", deadReasons[f.Reason], when(e.now, f.Failed), oneLine(beginning(f.Error)))
		}
		s.Next = []string{
			show, e.command(e.eventID, "dead", "replay", "--consumer", l.Consumer), e.command(e.eventID, "dead", "discard", "--consumer", l.Consumer),
		}
	}
}

// attempts tells how often an event has failed, and the last error.
func (e *evidence) attempts(f *deadletter.Event) string {
	last := fmt.Sprintf("the last error was %s: %s", when(e.now, f.Failed), oneLine(beginning(f.Error)))
	switch {
	case f.Attempts == 0 && f.Error == "":
		return "It was blocked by an earlier event of the same key, and no attempt has failed"
	case f.Replayed && f.Attempts == 0:
		return "An operator has replayed it, and no attempt has failed since; " + last
	case f.Replayed:
		return "An operator has replayed it. Since then " + haveFailed(f.Attempts) + "; " + last
	case f.Attempts == 0:
		return "No attempt has failed since; " + last
	}
	return upper(haveFailed(f.Attempts)) + "; " + last
}

// upper begins a sentence.
func upper(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

var deadReasons = map[string]string{
	"attempts":  "It failed as often as claim.max_attempts allows.",
	"permanent": "Its handler returned a permanent error.",
	"window":    "It is older than the consumer's retention watermark, so nobody knows whether it was processed.",
	"clock":     "Its ID is from the future: a producer's clock is wrong.",
	"malformed": "It has no usable event ID.",
	"killed":    "It is a poison message: each process that started it alone was killed.",
}
