package console

import (
	"cmp"
	"context"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/console/internal/filter"
	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/console/internal/mask"
	"github.com/millrace-go/millrace/console/internal/payload"
	"github.com/millrace-go/millrace/console/internal/replays"
	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// deadPage is the data of page_dead.html.
type deadPage struct {
	Filter  filter.Filter
	Tokens  []token
	Query   template.URL // the filter in the form of a URL
	Wrong   bool
	Causes  []cause
	Total   outboxadmin.Count // events that match
	Of      string            // which events were counted; "" for all
	Events  []deadletter.Event
	After   bool         // it is not the first page
	Next    template.URL // the query of the next page; "" for none
	Partly  bool         // the search ended before the page was full
	Replays []replays.Replay
	Failure string // why counting failed
	Unasked bool   // no consumer has claimed anything in this schema
	None    bool   // no filter is set, and no event is dead
}

// token is a condition of the filter, with the URL of the page without it.
type token struct {
	filter.Token
	Without template.URL
}

// cause is a group of errors, with the URL of the page for that group alone.
type cause struct {
	deadletter.ErrorGroup
	With   template.URL
	Chosen bool
}

// encode returns the filter as the query of a URL.
func encode(f filter.Filter) template.URL {
	return template.URL(f.Query().Encode()) // Encode has escaped it
}

// maxCauses is how many causes a page lists.
const maxCauses = 20

func (q *request) dead() error {
	if typed, ok := q.r.URL.Query()["filter"]; ok { // from the form: redirect to a URL with names
		f := filter.Parse(strings.Join(typed, " "))
		if f.Err() == nil {
			http.Redirect(q.w, q.r, q.cfg.Prefix+"/"+q.db.Name+"/dead?"+f.Query().Encode(), http.StatusSeeOther)
			return nil
		}
		return q.deadList(f)
	}
	return q.deadList(filter.FromQuery(q.r.URL.Query()))
}

func (q *request) deadList(f filter.Filter) error {
	p := deadPage{Filter: f, Query: encode(f), Wrong: f.Err() != nil, Replays: q.replays(true)}
	for i, t := range f.Tokens {
		p.Tokens = append(p.Tokens, token{t, encode(f.Without(i))})
	}
	there := q.snapshot().There
	if p.Unasked = !there["claim"]; p.Unasked || p.Wrong {
		q.render(map[bool]int{false: http.StatusOK, true: http.StatusBadRequest}[p.Wrong], "page_dead.html", "Dead letters", "dead", p)
		return nil
	}
	of := f.With("group", "")
	causes, err := q.sample(of, of.Selection(q.snapshot().Now))
	if err != nil {
		p.Failure = format.Error(err)
	}
	for _, g := range causes.Groups[:min(len(causes.Groups), maxCauses)] {
		chosen := g.Group == f.Get("group")
		with := f.With("group", g.Group)
		if chosen {
			with = f.With("group", "")
		}
		p.Causes = append(p.Causes, cause{g, encode(with), chosen})
	}
	p.Of = figures.Scope(causes)
	all := causes
	if f.Get("group") != "" {
		if all, err = q.sample(f, f.Selection(q.snapshot().Now)); err != nil {
			p.Failure = format.Error(err)
		}
	}
	p.Total = matching(all)
	p.None = p.Total.N == 0 && len(p.Replays) == 0 && len(f.Tokens) == 0 && err == nil
	after, wrong := strconv.ParseInt(cmp.Or(q.r.URL.Query().Get("after"), "0"), 10, 64)
	if wrong != nil || after < 0 {
		return errNotFound
	}
	p.After = after > 0
	type list struct {
		events []deadletter.Event
		older  int64
	}
	l, err := read(q, fmt.Sprintf("dead list %d %s", after, p.Query), figures.Fresh, func(ctx context.Context, db *database) (l list, err error) {
		l.events, l.older, err = deadletter.ListNewest(ctx, db.Pool, db.Schema, deadletter.Listing{Selection: f.Selection(q.snapshot().Now), Limit: maxListed, After: after})
		return l, err
	})
	if err != nil {
		p.Failure = format.Error(err)
	}
	if p.Events = l.events; l.older > 0 {
		next := f.Query()
		next.Set("after", strconv.FormatInt(l.older, 10))
		p.Next = template.URL(next.Encode()) // Encode has escaped it
	}
	p.Partly = l.older > 0 && len(l.events) < maxListed
	q.render(http.StatusOK, "page_dead.html", "Dead letters", "dead", p)
	return nil
}

// sample returns the error groups of the newest selected events, and how many events are selected.
func (q *request) sample(f filter.Filter, s deadletter.Selection) (deadletter.Sample, error) {
	return read(q, "dead sample "+strings.Join(s.States, ",")+" "+f.Query().Encode(), figures.Fresh, func(ctx context.Context, db *database) (deadletter.Sample, error) {
		return deadletter.SampleGroups(ctx, db.Pool, db.Schema, s)
	})
}

func matching(s deadletter.Sample) outboxadmin.Count {
	return outboxadmin.Count{N: int64(s.Selected), AtLeast: s.AtLeast}
}

// deadEventPage is the data of page_dead_event.html.
type deadEventPage struct {
	deadletter.Event
	Headers []mask.Header
	Origin  []mask.Header
	Body    mask.Body
	Others  []payload.Failure // the same event of other consumers
	Edit    string            // why its payload cannot be edited here; "" if it can
}

func (q *request) deadEvent() error {
	e, others, err := q.failed(q.r.URL.Query())
	if err != nil {
		return err
	}
	p := deadEventPage{Event: e.Event, Others: others}
	_, p.Edit = q.editable(e)
	p.Headers, p.Origin = q.mask.Headers(p.Metadata), q.mask.Headers(p.Event.Origin)
	if p.Body, err = q.reveal(e.Body, q.noteEvent(e.Event)); err != nil {
		return err
	}
	q.render(http.StatusOK, "page_dead_event.html", "Dead letter", "dead", p)
	return nil
}

// noteEvent notes in the audit that the user sees the payload.
func (q *request) noteEvent(e deadletter.Event) func(context.Context, operator.By) error {
	return func(ctx context.Context, by operator.By) error {
		return deadletter.AuditReveal(ctx, q.db.Pool, q.db.Schema, e.EventID, e.Consumer, by)
	}
}

// failed returns the event that a URL or a form names, as one consumer's failure, and the failures of other consumers.
func (q *request) failed(f url.Values) (e payload.Failure, others []payload.Failure, err error) {
	id, consumer := f.Get("id"), f.Get("consumer")
	if !filter.Usable(id) || !filter.Usable(consumer) || !q.snapshot().There["claim"] {
		return e, nil, errNotFound
	}
	found, err := read(q, "dead event "+id, figures.Fresh, func(ctx context.Context, _ *database) ([]payload.Failure, error) {
		return q.payloads().Failures(ctx, id)
	})
	if err != nil {
		return e, nil, err
	}
	i := slices.IndexFunc(found, func(e payload.Failure) bool { return consumer == "" || e.Consumer == consumer })
	if i < 0 {
		return e, nil, fmt.Errorf("%w: no consumer has failed to handle event %q, or it was settled since", errNotFound, id)
	}
	return found[i], append(slices.Clone(found[:i]), found[i+1:]...), nil
}
