package console

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/millrace-go/millrace/internal/explain"
)

// eventPage is the content of the page of an event.
type eventPage struct {
	Asked string
	explain.Explanation
	Verdict verdict
	Failure string
	Known   bool
}

const (
	// freshEvent is longer than for figures: the outbox has no index on event IDs.
	freshEvent = 3 * time.Second
	// eventPatience is for how long it is read: twice, for the event and for what its handlers published.
	eventPatience = 100 * time.Millisecond
)

func (q *request) event() error {
	p := eventPage{Asked: strings.TrimSpace(q.r.URL.Query().Get("id"))}
	switch {
	case p.Asked == "":
	case !usable(p.Asked):
		p.Failure = "This can be no event ID."
	default:
		e, err := read(q, "event "+p.Asked, freshEvent, func(ctx context.Context, db *database) (explain.Explanation, error) {
			return explain.Explain(ctx, db.Pool, db.Schema, p.Asked, time.Time{}, db.reach, eventPatience)
		})
		if err != nil {
			p.Failure = said(err)
			break
		}
		p.Explanation, p.Known, p.Verdict = e, e.Known, concludeEvent(e)
	}
	q.render(http.StatusOK, "page_event.html", "Event", "event", p)
	return nil
}

// concludeEvent says in one sentence how the event stands.
func concludeEvent(e explain.Explanation) verdict {
	counts := map[string]int{}
	consumers, unread := 0, false
	for _, s := range e.Stages {
		class := shape(s.State)
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
		completed = plural(counts["completed"], "consumer", "consumers") + " of " + number(consumers) + " completed it."
	}
	switch {
	case !e.Known && len(e.Stages) > 0 && len(e.Stages[0].Next) > 0: // of the one that says where it was looked for
		return verdict{State: "pending", Text: "It was not found, and the outbox is too large to be searched here."}
	case !e.Known:
		return verdict{State: "pending", Text: "No table has this event."}
	case counts["dead"] > 0:
		return verdict{State: "dead", Text: "A person decides: it is dead in " + plural(counts["dead"], "place.", "places."), More: completed}
	case counts["doubt"] > 0:
		return verdict{State: "doubt", Text: "A person decides: " + plural(counts["doubt"], "part is", "parts are") + " in doubt.", More: completed}
	case counts["retrying"] > 0:
		return verdict{State: "retrying", Text: "It failed, and is tried again.", More: completed}
	case counts["blocked"] > 0:
		return verdict{State: "blocked", Text: "It waits behind an earlier event of its key.", More: completed}
	case counts["run"] > 0:
		return verdict{State: "run", Text: "It is being handled.", More: completed}
	case counts["pending"] > 0:
		return verdict{State: "pending", Text: "It waits to be published.", More: completed}
	case unread:
		return verdict{State: "pending", Text: "The outbox is too large to be searched here.", More: completed}
	}
	return verdict{State: "done", Text: "It is settled.", More: completed}
}
