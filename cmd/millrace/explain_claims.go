package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/millrace-go/millrace/middleware/claim"
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
		return []stage{{Place: "claim", State: "not seen", Why: "no consumer has claimed anything in this schema"}}
	}
	if len(unseen) > 0 {
		all = append(all, stage{
			Place: "claim", State: "not seen",
			Why: "by " + oneLine(strings.Join(unseen, ", ")) + ": it has not come, is not for them, or its claim was rolled back and that was no failed attempt",
		})
	}
	return all
}

func (e *evidence) withConsumer(l claim.Location) stage {
	s := stage{Place: "claim", Of: l.Consumer}
	show := e.command(e.eventID, "dead", "show", "--consumer", l.Consumer)
	behind := fmt.Sprintf("behind event %s of its key, which is %s", oneLine(l.Behind), claimStates[l.BehindState])
	switch f := l.Failed; {
	case f == nil && l.Claimed != nil:
		s.done(e, l)
	case l.Holder != nil:
		s.inHand(e, l)
	case f != nil:
		s.failed(e, l, show, behind)
	case l.Behind != "":
		s.State, s.Why, s.Next = "to be parked", "when it comes it waits "+behind, []string{e.command(l.Behind, "explain")}
	case l.TooOld:
		s.State, s.Why = "too old", "it was minted before what this consumer remembers, since "+when(e.now, *l.Floor)+": delivered now it becomes a dead letter, because nobody knows whether it was processed (it is run where claim.run_too_old is set)"
	}
	if l.Starts != nil {
		s.State = cmp.Or(s.State, "suspect")
		s.Why = strings.TrimPrefix(s.Why+fmt.Sprintf("; it was in hand when a process was killed, and was begun alone %d times since", *l.Starts), "; ")
	}
	return s
}

// done is for an event that this consumer has settled.
func (s *stage) done(e *evidence, l claim.Location) {
	s.State, s.Why = "completed", "recorded "+when(e.now, *l.Claimed)
	if a := decision(l); a != nil {
		by := oneLine(a.Actor) + ", " + when(e.now, a.At) + note(*a)
		if a.Action == "replay" {
			s.Why += "; it was tried again for " + by
		} else {
			s.State, s.Why = "discarded", "it was not handled, it was given up by "+by
		}
	}
	s.Why += "; what is delivered again is absorbed"
	if l.Holder != nil {
		s.Why += fmt.Sprintf(", as at this moment by session %d", l.Holder.PID)
	}
}

// decision is the last one of an operator about an event that is settled: to replay it, or to give it up; nil for none.
func decision(l claim.Location) *claim.Audit {
	for i, a := range l.Audit { // the last first
		if a.Action == "replay" || a.Action == "discard" || a.Action == "purge" {
			return &l.Audit[i]
		}
	}
	return nil
}

// note is why an operator did something.
func note(a claim.Audit) string {
	var detail struct{ Note string }
	if json.Unmarshal(a.Detail, &detail) != nil || detail.Note == "" {
		return ""
	}
	return ": " + oneLine(beginning(detail.Note))
}

// inHand is for an event whose handler runs.
func (s *stage) inHand(e *evidence, l claim.Location) {
	s.State = "in progress"
	s.Why = fmt.Sprintf("session %d has it in hand", l.Holder.PID)
	if who := strings.TrimSpace(l.Holder.Application + " " + l.Holder.Client); who != "" {
		s.Why += " (" + oneLine(who) + ")"
	}
	if since := l.Holder.Since; since != nil {
		s.Why += ", since " + when(e.now, *since)
		if e.now.Sub(*since) > longAgo {
			s.Why += "; where its process is gone, the server ends the session a little after claim.handler_timeout"
			s.Next = []string{e.psql("", fmt.Sprintf("select pg_terminate_backend(%d)", l.Holder.PID))}
		}
	}
	if f := l.Failed; f != nil {
		s.Why += "; " + haveFailed(f.Attempts) + ": " + oneLine(beginning(f.Error))
	}
}

var claimStates = map[string]string{"waiting": "to be tried again", "parked": "parked itself", "dead": "a dead letter"}

// failed is for an event that was not handled.
func (s *stage) failed(e *evidence, l claim.Location, show, behind string) {
	f := l.Failed
	attempts := haveFailed(f.Attempts) + ", the last one " + when(e.now, f.Failed) + ": " + oneLine(beginning(f.Error))
	if f.Replayed {
		attempts = "an operator has had it tried again; " + attempts
	}
	switch f.State {
	case "failing":
		s.State, s.Why, s.Next = "failing", attempts+"; the broker delivers it again", []string{show}
	case "waiting":
		s.State, s.Why, s.Next = "to be retried", attempts, []string{show}
		if f.Due != nil && f.Due.After(e.now) {
			s.Why += "; the next one is " + when(e.now, *f.Due)
		} else if f.Due != nil {
			s.Why += "; it is due since " + when(e.now, *f.Due) + ", for a running process of the consumer (one with a router of its own wants its subscriber wrapped by Claim.Subscriber)"
		}
	case "parked":
		s.State, s.Why = "parked", "it waits "+behind
		s.Next = []string{e.command(l.Behind, "explain")}
		if l.Behind == "" {
			s.Why, s.Next = "it waited behind another event of its key that is gone: its consumer takes it up within a minute", nil
		}
	case "dead":
		s.State, s.Why = "dead letter", deadReasons[f.Reason]+attempts
		if f.Attempts == 0 {
			s.Why = deadReasons[f.Reason] + "since " + when(e.now, f.Failed) + ": " + oneLine(beginning(f.Error))
		}
		s.Next = []string{
			show, e.command(e.eventID, "dead", "replay", "--consumer", l.Consumer), e.command(e.eventID, "dead", "discard", "--consumer", l.Consumer),
		}
	}
}

var deadReasons = map[string]string{
	"attempts": "it failed as often as it may; ", "permanent": "its handler says that it can never succeed; ",
	"window": "it is older than what is remembered, so nobody knows whether it was processed; ", "clock": "its ID is from the future; ",
	"malformed": "it has no usable event ID; ", "killed": "processes were killed every time they began it; ",
}
