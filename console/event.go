package console

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/console/internal/filter"
	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/internal/explain"
)

// eventPage is the data of page_event.html.
type eventPage struct {
	Asked string
	explain.Explanation
	figures.Life
	Verdict figures.Verdict
	TraceAt string // the address of its trace; "": not configured
	Failure string
	Command string // one that helps where this page cannot
	Known   bool
}

const (
	// freshEvent is longer than for figures, because the outbox has no index on event IDs.
	freshEvent = 3 * time.Second
	// freshID is how long the page keeps the ID that it found for a part of an ID: no index helps that search.
	freshID = time.Minute
	// eventPatience bounds each read without an index: of a part of an ID, of the event, and of the events that its handlers published.
	eventPatience = 60 * time.Millisecond
)

func (q *request) event() error {
	p, status := eventPage{Asked: strings.TrimSpace(q.r.URL.Query().Get("id"))}, http.StatusOK
	switch {
	case p.Asked == "":
	case !filter.Usable(p.Asked):
		p.Failure = "This can be no event ID."
	default:
		e, err := q.explained(p.Asked)
		if errors.Is(err, explain.ErrNotSearched) {
			p.Failure, p.Command = "The tables are too large to look up a part of an event ID here: give the whole ID, or run:", q.db.Reach.Command(p.Asked, "explain")
			break
		}
		if err != nil {
			p.Failure = format.Error(err)
			if !errors.Is(err, explain.ErrNoTables) && !errors.Is(err, explain.ErrNotOne) {
				status = http.StatusServiceUnavailable // an open page keeps what it shows
			}
			break
		}
		p.Explanation, p.Known, p.Verdict = e, e.Known, figures.ConcludeEvent(e)
		p.Life, p.TraceAt = figures.Live(e), q.cfg.traceAt(e.Trace)
	}
	q.render(status, "page_event.html", "Event", "event", p)
	return nil
}

// explained returns what is known about the event. asked may be a part of its ID. If the tables are too large to search for a part,
// explained takes asked for the whole ID.
func (q *request) explained(asked string) (explain.Explanation, error) {
	id, err := read(q, "ID of event "+asked, freshID, func(ctx context.Context, db *database) (string, error) {
		id, err := explain.Search(ctx, db.Pool, db.Schema, asked, eventPatience)
		if errors.Is(err, explain.ErrNotSearched) {
			return "", nil // a result, so that an open page does not search again each time
		}
		return id, err
	})
	if err != nil {
		return explain.Explanation{}, err
	}
	e, err := read(q, "event "+cmp.Or(id, asked), freshEvent, func(ctx context.Context, db *database) (explain.Explanation, error) {
		return explain.Exactly(ctx, db.Pool, db.Schema, cmp.Or(id, asked), time.Time{}, db.Reach, eventPatience)
	})
	late := errors.Is(err, context.DeadlineExceeded) && q.snapshot().Error == "" // the tables are slow, and the database answers
	if id == "" && !e.Known && (err == nil || late) {
		err = explain.ErrNotSearched
	}
	return e, err
}
