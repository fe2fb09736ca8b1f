package console

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/millrace-go/millrace/console/internal/filter"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// deadPage is the content of the page of dead letters.
type deadPage struct {
	Filter  filter.Filter
	Tokens  []token
	Query   template.URL // the filter as the URL has it
	Wrong   bool
	Causes  []cause
	Total   outboxadmin.Count // that match
	Of      string            // which events were counted; "" for all
	Events  []deadletter.Event
	After   bool         // it is not the first page
	Next    template.URL // the query of the next page; "" for none
	Partly  bool         // the search has ended before the page was full
	Replays []replayView
	Failure string // why they are not counted
	Unasked bool   // nobody has claimed anything in this schema
	None    bool   // no filter is set, and no event is dead
}

// token is a condition, and the page without it.
type token struct {
	filter.Token
	Without template.URL
}

// cause is a group, and the page with it alone.
type cause struct {
	deadletter.ErrorGroup
	With   template.URL
	Chosen bool
}

// encode is a filter behind the "?" of a URL.
func encode(f filter.Filter) template.URL {
	return template.URL(f.Query().Encode()) // it is encoded
}

// maxCauses is how many causes a page lists.
const maxCauses = 20

func (q *request) dead() error {
	if typed, ok := q.r.URL.Query()["filter"]; ok { // from the form: the URL gets the names
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
	causes, err := q.sample(of, of.Selection(time.Now()))
	if err != nil {
		p.Failure = said(err)
	}
	for _, g := range causes.Groups[:min(len(causes.Groups), maxCauses)] {
		chosen := g.Group == f.Get("group")
		with := f.With("group", g.Group)
		if chosen {
			with = f.With("group", "")
		}
		p.Causes = append(p.Causes, cause{g, encode(with), chosen})
	}
	p.Of = scope(causes)
	all := causes
	if f.Get("group") != "" {
		if all, err = q.sample(f, f.Selection(time.Now())); err != nil {
			p.Failure = said(err)
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
	l, err := read(q, fmt.Sprintf("dead list %d %s", after, p.Query), fresh, func(ctx context.Context, db *database) (l list, err error) {
		l.events, l.older, err = deadletter.ListNewest(ctx, db.Pool, db.Schema, deadletter.Listing{Selection: f.Selection(time.Now()), Limit: maxListed, After: after})
		return l, err
	})
	if err != nil {
		p.Failure = said(err)
	}
	if p.Events = l.events; l.older > 0 {
		next := f.Query()
		next.Set("after", strconv.FormatInt(l.older, 10))
		p.Next = template.URL(next.Encode()) // it is encoded
	}
	p.Partly = l.older > 0 && len(l.events) < maxListed
	q.render(http.StatusOK, "page_dead.html", "Dead letters", "dead", p)
	return nil
}

// sample is what the newest events of a filter's selection have in common, and how many are selected.
func (q *request) sample(f filter.Filter, s deadletter.Selection) (deadletter.Sample, error) {
	return read(q, "dead sample "+strings.Join(s.States, ",")+" "+f.Query().Encode(), fresh, func(ctx context.Context, db *database) (deadletter.Sample, error) {
		return deadletter.SampleGroups(ctx, db.Pool, db.Schema, s)
	})
}

// matching is how many events a sample's selection has.
// scope says of which events a sample is; "" for all.
func scope(s deadletter.Sample) string {
	switch {
	case s.Searched > 0:
		return "the newest " + number(s.Searched) + " were searched"
	case s.AtLeast || s.Selected > s.Events:
		return "of the newest " + number(s.Events)
	}
	return ""
}

func matching(s deadletter.Sample) outboxadmin.Count {
	return outboxadmin.Count{N: int64(s.Selected), AtLeast: s.AtLeast}
}

// deadEventPage is the content of the page of one event that failed.
type deadEventPage struct {
	deadletter.Event
	Headers []header
	Origin  []header
	Body    body
	Others  []deadletter.Event // the same event at other consumers
	Edit    string             // why its payload cannot be edited here; "" where it can
}

type header struct{ Name, Value string }

// body is a payload as somebody may see it.
type body struct {
	Hidden string // why it is not shown
	Text   string
	Bytes  int
	Cut    bool
}

// maxBody is how much of a payload a page shows.
const maxBody = 64 << 10

func (q *request) deadEvent() error {
	e, others, err := q.failed(q.r.URL.Query())
	if err != nil {
		return err
	}
	p := deadEventPage{Event: e, Others: others}
	_, p.Edit = q.editable(e)
	p.Headers, p.Origin = q.headers(p.Metadata), q.headers(p.Event.Origin)
	p.Body = q.body(p.Payload, p.Bytes)
	q.render(http.StatusOK, "page_dead_event.html", "Dead letter", "dead", p)
	return nil
}

// failed finds the event that a URL or a form names, as it failed for one consumer, and as it failed for others.
func (q *request) failed(f url.Values) (e deadletter.Event, others []deadletter.Event, err error) {
	id, consumer := f.Get("id"), f.Get("consumer")
	if !usable(id) || !usable(consumer) || !q.snapshot().There["claim"] {
		return e, nil, errNotFound
	}
	found, err := read(q, "dead event "+id, fresh, func(ctx context.Context, db *database) ([]deadletter.Event, error) {
		return deadletter.Show(ctx, db.Pool, db.Schema, id, "")
	})
	if err != nil {
		return e, nil, err
	}
	i := slices.IndexFunc(found, func(e deadletter.Event) bool { return consumer == "" || e.Consumer == consumer })
	if i < 0 {
		return e, nil, fmt.Errorf("%w: no consumer has failed to handle event %q, or it was settled since", errNotFound, id)
	}
	return found[i], append(slices.Clone(found[:i]), found[i+1:]...), nil
}

// usable reports whether a text from a URL can be an ID or a name: PostgreSQL takes no other.
func usable(text string) bool {
	return len(text) <= 2000 && utf8.ValidString(text) && !strings.ContainsRune(text, 0)
}

// headers are sorted, and masked as the configuration says.
func (q *request) headers(m map[string]string) (all []header) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		v := m[k]
		if q.mask[strings.ToLower(k)] {
			v = masked
		}
		all = append(all, header{k, v})
	}
	return all
}

// masked stands for a value that nobody sees, however long it is.
const masked = "••••••"

// body shows a payload to those who may see it.
func (q *request) body(payload []byte, size int) body {
	b := body{Bytes: size}
	value, isJSON := parseJSON(payload)
	switch {
	case size == 0 && len(payload) == 0:
		b.Hidden = "The payload is not here: the broker has it, or it is empty."
	case !q.rights.Has(Payloads):
		b.Hidden = "You may not see payloads. Ask for the right to."
	case len(q.mask) > 0 && !isJSON:
		b.Hidden = "The payload is no JSON, so its secrets cannot be masked, and it is hidden."
	case len(q.mask) > 0:
		text, err := json.MarshalIndent(q.masked(value), "", "  ")
		if err != nil {
			b.Hidden = "The payload cannot be shown."
			break
		}
		b.Text = string(text)
	case isJSON:
		b.Text = indented(payload)
	default:
		b.Text = legible(payload)
	}
	if b.Cut = len(b.Text) > maxBody; b.Cut {
		b.Text = strings.ToValidUTF8(b.Text[:maxBody], "")
	}
	return b
}

// indented is JSON in lines, and other text as it is.
func indented(payload []byte) string {
	var b bytes.Buffer
	if json.Indent(&b, bytes.TrimSpace(payload), "", "  ") != nil {
		return string(payload)
	}
	return b.String()
}

// parseJSON keeps numbers as they are written.
func parseJSON(b []byte) (value any, ok bool) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	ok = json.Valid(b) && d.Decode(&value) == nil
	return value, ok
}

// masked replaces the values of fields that nobody may see.
func (q *request) masked(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for k := range v {
			if q.hides(v, k) {
				v[k] = masked
			} else {
				v[k] = q.masked(v[k])
			}
		}
	case []any:
		for i := range v {
			v[i] = q.masked(v[i])
		}
	}
	return value
}

// hides reports whether nobody may see a field: it is named by Config.Mask, or it is a CloudEvent's data as text or base64, in which such
// a field may be.
func (q *request) hides(object map[string]any, field string) bool {
	if q.mask[strings.ToLower(field)] {
		return true
	}
	_, text := object[field].(string)
	_, cloudEvent := object["specversion"]
	return len(q.mask) > 0 && cloudEvent && text && (field == "data" || field == "data_base64")
}

// legible is text as it is, and else quoted.
func legible(b []byte) string {
	if utf8.Valid(b) && !strings.ContainsFunc(string(b), func(r rune) bool { return !unicode.IsGraphic(r) && r != '\n' && r != '\t' }) {
		return string(b)
	}
	return fmt.Sprintf("%+q", b)
}
