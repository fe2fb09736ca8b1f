package figures

import (
	"time"

	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/console/internal/waterfall"
	"github.com/millrace-go/millrace/internal/explain"
)

// ConcludeEvent describes the state of an event in one sentence.
func ConcludeEvent(e explain.Explanation) Verdict {
	counts := map[string]int{}
	consumers, unread := 0, false
	for _, s := range e.Stages {
		class := format.Shape(s.State)
		unread = unread || s.Place == "outbox" && s.State == "not known"
		if s.Place == "claim" && s.State != "not seen" {
			consumers++
		}
		if s.Place == "claim" && s.State == "completed" {
			counts["completed"]++
		}
		if s.Place != "output" && s.Place != "copy" { // which are events of their own
			counts[class]++
		}
	}
	completed := ""
	if consumers > 0 {
		completed = format.Plural(counts["completed"], "consumer", "consumers") + " of " + format.Number(consumers) + " completed it."
	}
	switch {
	case !e.Known && len(e.Stages) > 0 && len(e.Stages[0].Next) > 0: // of the one that says where it was looked for
		return Verdict{State: "pending", Text: "It was not found, and the outbox is too large to be searched here."}
	case !e.Known:
		return Verdict{State: "pending", Text: "No table has this event."}
	case counts["dead"] > 0:
		return Verdict{State: "dead", Text: "A person decides: it is dead in " + format.Plural(counts["dead"], "place.", "places."), More: completed}
	case counts["doubt"] > 0:
		return Verdict{State: "doubt", Text: "A person decides: " + format.Plural(counts["doubt"], "part is", "parts are") + " in doubt.", More: completed}
	case counts["retrying"] > 0:
		return Verdict{State: "retrying", Text: "It failed, and is tried again.", More: completed}
	case counts["blocked"] > 0:
		return Verdict{State: "blocked", Text: "It waits behind an earlier event of its key.", More: completed}
	case counts["run"] > 0:
		return Verdict{State: "run", Text: "It is being handled.", More: completed}
	case counts["pending"] > 0:
		return Verdict{State: "pending", Text: "It waits to be published.", More: completed}
	case unread:
		return Verdict{State: "pending", Text: "The outbox is too large to be searched here.", More: completed}
	}
	return Verdict{State: "done", Text: "It is settled.", More: completed}
}

// Life is the life of an event, as its page draws it.
type Life struct {
	Steps []Step
	Gaps  []waterfall.Gap // quiet times that are shortened
	From  time.Time       // zero: no time is known
	Facts []Fact
}

// Step is a stage of the life, or a failed attempt of a consumer.
type Step struct {
	explain.Stage
	Bar   *waterfall.Bar // nil: no time is known
	After string         // since the life began
	Took  string         // "": not known
	Open  bool           // it has not ended
}

// Fact is a duration between two places.
type Fact struct{ Name, Value string }

// Live puts the stages of an event on one axis of time.
func Live(e explain.Explanation) (life Life) {
	var spans []waterfall.Span
	add := func(s Step) {
		if s.At != nil {
			span := waterfall.Span{At: *s.At}
			if s.Open = s.End == nil && open(s.Stage); s.Open {
				span.End = e.Now
			} else if s.End != nil {
				span.End = *s.End
			}
			if !span.End.IsZero() && !span.End.Before(span.At) {
				s.Took = format.Took(span.End.Sub(span.At))
			} else {
				span.End = time.Time{}
			}
			if life.From.IsZero() || span.At.Before(life.From) {
				life.From = span.At
			}
			spans = append(spans, span)
			s.Bar = new(waterfall.Bar)
		}
		life.Steps = append(life.Steps, s)
	}
	for _, s := range e.Stages {
		add(Step{Stage: s})
		for _, a := range s.Attempts {
			add(Step{Stage: explain.Stage{Place: "attempt", Of: a.By, State: "failed", Why: a.Error, At: &a.At}})
		}
	}
	bars, gaps := waterfall.Lay(spans)
	life.Gaps = gaps
	for i := range life.Steps {
		if s := &life.Steps[i]; s.Bar != nil {
			*s.Bar, bars = bars[0], bars[1:]
			if after := s.At.Sub(life.From); after > 0 {
				s.After = format.Took(after)
			}
		}
	}
	life.Facts = facts(e)
	return life
}

// open reports whether a stage that has begun goes on.
func open(s explain.Stage) bool {
	switch format.Shape(s.State) {
	case "pending", "retrying", "blocked", "dead", "doubt", "run":
		return s.Place != "attempt" && s.Place != "output" && s.Place != "copy"
	}
	return false
}

func facts(e explain.Explanation) (all []Fact) {
	var written *time.Time
	add := func(name string, at *time.Time) {
		if written != nil && at != nil && !at.Before(*written) {
			all = append(all, Fact{name, format.Took(at.Sub(*written))})
		}
	}
	for _, s := range e.Stages {
		switch {
		case s.Place == "outbox" && written == nil:
			written = s.At
			add("Outbox to broker", s.End)
		case s.Place == "broker":
			add("Outbox to first consumer", s.End)
		}
	}
	for _, f := range []Fact{{"Sent by relay", e.Relay}, {"At the broker", e.Origin}} {
		if f.Value != "" {
			all = append(all, f)
		}
	}
	return all
}
