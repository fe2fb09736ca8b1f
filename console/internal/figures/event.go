package figures

import (
	"github.com/millrace-go/millrace/console/internal/format"
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
