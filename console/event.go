package console

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/console/internal/filter"
	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/internal/explain"
)

// eventPage is the content of the page of an event.
type eventPage struct {
	Asked string
	explain.Explanation
	Verdict figures.Verdict
	Failure string
	Known   bool
}

const (
	// freshEvent is longer than for figures, because the outbox has no index on event IDs.
	freshEvent = 3 * time.Second
	// eventPatience bounds each of two reads: of the event, and of the events that its handlers published.
	eventPatience = 100 * time.Millisecond
)

func (q *request) event() error {
	p := eventPage{Asked: strings.TrimSpace(q.r.URL.Query().Get("id"))}
	switch {
	case p.Asked == "":
	case !filter.Usable(p.Asked):
		p.Failure = "This can be no event ID."
	default:
		e, err := read(q, "event "+p.Asked, freshEvent, func(ctx context.Context, db *database) (explain.Explanation, error) {
			return explain.Explain(ctx, db.Pool, db.Schema, p.Asked, time.Time{}, db.Reach, eventPatience)
		})
		if err != nil {
			p.Failure = format.Error(err)
			break
		}
		p.Explanation, p.Known, p.Verdict = e, e.Known, figures.ConcludeEvent(e)
	}
	q.render(http.StatusOK, "page_event.html", "Event", "event", p)
	return nil
}
