package console

import (
	"context"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// archiveFields are those of a URL that select events of the archive.
var archiveFields = []string{"topic", "key", "since", "until"}

// archiveFilter is what a URL or a form selects of the archive.
type archiveFilter struct {
	Topic, Key, Since, Until string // as they were given
	outboxadmin.ArchiveSelection
	Wrong string
}

// archiveFilterOf reads a filter, by the database's clock.
func (q *request) archiveFilterOf(f url.Values) (a archiveFilter) {
	get := func(name string) string {
		value := strings.TrimSpace(f.Get(name))
		if !usable(value) {
			value, a.Wrong = "", "The "+name+" has a byte that no name has, or it is too long."
		}
		return value
	}
	moment := func(name, text string) (at time.Time) {
		if text == "" {
			return at
		}
		at, err := words.ParseMoment(text, q.snapshot().Now)
		if err != nil {
			a.Wrong = fmt.Sprintf("%s is %q: %s.", name, text, err)
		}
		return at
	}
	a.Topic, a.Key, a.Since, a.Until = get("topic"), get("key"), get("since"), get("until")
	a.ArchiveSelection = outboxadmin.ArchiveSelection{Topic: a.Topic, Key: a.Key, Since: moment("since", a.Since), Until: moment("until", a.Until)}
	if s := a.ArchiveSelection; a.Wrong == "" && !s.Since.IsZero() && !s.Until.IsZero() && !s.Since.Before(s.Until) {
		a.Wrong = fmt.Sprintf("since is %q: want a time before until, which is %q.", a.Since, a.Until)
	}
	return a
}

// query is the filter as a URL has it.
func (a archiveFilter) query() url.Values {
	q := url.Values{}
	for i, value := range []string{a.Topic, a.Key, a.Since, a.Until} {
		if value != "" {
			q.Set(archiveFields[i], value)
		}
	}
	return q
}

// archivePage is the content of the page of the archive.
type archivePage struct {
	archiveFilter
	Query   template.URL
	Unused  bool // the schema has no outbox
	Empty   bool // the archive has nothing at all
	Report  outboxadmin.ArchiveReport
	Total   outboxadmin.Count // events that match
	Topics  []outboxadmin.ArchivedTopic
	Events  []outboxadmin.ArchivedEvent
	Behind  bool         // it is not the first page
	Next    template.URL // the query of the next page; "" for none
	Replays []archiveReplay
	Failure string // why they are not counted, or not listed
}

func (q *request) archive() error {
	values := q.r.URL.Query()
	p := archivePage{archiveFilter: q.archiveFilterOf(values)}
	p.Query = template.URL(p.query().Encode()) // it is encoded
	behind, ok := parsePosition(values.Get("behind"))
	if !ok {
		return errNotFound
	}
	status := http.StatusOK
	switch p.Unused = !q.snapshot().There["outbox"]; {
	case p.Unused:
	case p.Wrong != "":
		status = http.StatusBadRequest
	default:
		p.Behind, p.Replays = values.Get("behind") != "", q.archiveReplays(true)
		var err error
		p.Report, err = read(q, "archive", fresh, func(ctx context.Context, db *database) (outboxadmin.ArchiveReport, error) {
			return outboxadmin.InspectArchive(ctx, db.Pool, db.Schema)
		})
		p.Empty = p.Report.First == nil && err == nil
		if err == nil {
			err = p.fill(q, behind, values.Get("behind"))
		}
		if err != nil {
			p.Failure = said(err)
		}
	}
	q.render(status, "page_archive.html", "Archive", "outbox", p)
	return nil
}

// fill counts what matches, and lists a page of it.
func (p *archivePage) fill(q *request, behind outboxadmin.ArchivePosition, at string) error {
	sample, err := q.archiveSample(p.archiveFilter)
	if err != nil {
		return err
	}
	p.Total, p.Topics = sample.Selected, sample.Topics[:min(len(sample.Topics), maxListed)]
	type list struct {
		events []outboxadmin.ArchivedEvent
		next   *outboxadmin.ArchivePosition
	}
	l, err := read(q, "archive list "+at+" "+string(p.Query), fresh, func(ctx context.Context, db *database) (l list, err error) {
		l.events, l.next, err = outboxadmin.ListArchive(ctx, db.Pool, db.Schema, p.ArchiveSelection, behind, maxListed)
		return l, err
	})
	if p.Events = l.events; l.next != nil {
		next := p.query()
		next.Set("behind", positionText(*l.next))
		p.Next = template.URL(next.Encode()) // it is encoded
	}
	return err
}

// archiveSample is how many events match, of the newest.
func (q *request) archiveSample(f archiveFilter) (outboxadmin.ArchiveSample, error) {
	return read(q, "archive sample "+f.query().Encode(), fresh, func(ctx context.Context, db *database) (outboxadmin.ArchiveSample, error) {
		return outboxadmin.SampleArchive(ctx, db.Pool, db.Schema, f.ArchiveSelection)
	})
}

// positionText is a position in the archive as a URL has it; times in microseconds, as PostgreSQL has them.
func positionText(p outboxadmin.ArchivePosition) string {
	return fmt.Sprintf("%d.%d.%d.%d", p.Published.UnixMicro(), p.Created.UnixMicro(), p.Seq, p.Shard)
}

// parsePosition reads a position; "" is the one before the newest event.
func parsePosition(text string) (p outboxadmin.ArchivePosition, ok bool) {
	if text == "" {
		return p, true
	}
	parts := strings.Split(text, ".")
	if len(parts) != 4 {
		return p, false
	}
	var n [4]int64
	for i, part := range parts {
		bits := 64
		if i == 3 {
			bits = 16
		}
		var err error
		if n[i], err = strconv.ParseInt(part, 10, bits); err != nil || n[i] < 0 || i < 2 && n[i] > maxMicros {
			return p, false
		}
	}
	return outboxadmin.ArchivePosition{Published: time.UnixMicro(n[0]), Created: time.UnixMicro(n[1]), Seq: n[2], Shard: int16(n[3])}, true
}

// maxMicros is a time that PostgreSQL has, in the year 9999.
const maxMicros = 253_370_764_800_000_000

// archivePace is what a form proposes: the guard of a replay of dead letters is not for events that have not failed.
func archivePace(f url.Values, rate int) pace {
	p := paceOf(url.Values{"rate": {f.Get("rate")}}, usualPace)
	if !f.Has("rate") && rate > 0 {
		p = paceOf(url.Values{"rate": {strconv.Itoa(rate)}}, usualPace)
	}
	p.Unguarded = true
	return p
}

func planArchive(q *request, f url.Values) (p plan, err error) {
	if !q.snapshot().There["outbox"] {
		return p, errNotFound
	}
	a := q.archiveFilterOf(f)
	if a.Wrong != "" {
		return p, fmt.Errorf("%w: %s", errNotFound, a.Wrong)
	}
	p.Back = "/outbox/archive?" + a.query().Encode()
	// The selection gets an end, or it would grow while a person reads how many events it has; and its beginning stays where it is.
	if a.Until == "" || a.ArchiveSelection.Until.After(q.snapshot().Now) {
		a.ArchiveSelection.Until = q.snapshot().Now
	}
	a.Until = a.ArchiveSelection.Until.UTC().Format(time.RFC3339Nano)
	if a.Since != "" {
		a.Since = a.ArchiveSelection.Since.UTC().Format(time.RFC3339Nano)
	}
	f.Set("since", a.Since)
	f.Set("until", a.Until)
	sample, err := q.archiveSample(a)
	if err != nil {
		return p, err
	}
	p.N = sample.Selected
	many := atLeast(p.N)
	for _, t := range sample.Topics[:min(len(sample.Topics), 10)] {
		p.Lines = append(p.Lines, planLine{t.Events, t.Topic})
	}
	if more := len(sample.Topics) - 10; more > 0 {
		p.Lines = append(p.Lines, planLine{p.N.N - sum(p.Lines), "of " + plural(more, "other topic", "other topics")})
	}
	if p.N.AtLeast {
		p.Of, p.Danger, p.Warning = "of the newest in this time", true, notCounted
	}
	p.Question, p.Verb = "Replay "+many+" archived "+words.Pick(p.N.N, "event?", "events?"), "Replay "+many+" "+words.Pick(p.N.N, "event", "events")
	p.Explain = "They get into the outbox again, with the IDs that they had, and relays send them. Consumers ignore what they have processed. New events of a key may come before its replayed ones."
	to := strings.TrimSpace(f.Get("to"))
	at := archivePace(f, usualPace.Rate)
	p.To, p.Pace, p.Wrong = &to, &at, at.wrong
	if !usable(to) {
		to, p.Wrong = "", "The topic has a byte that no name has, or it is too long."
	}
	p.Command = q.db.reach.Command("", append([]string{"outbox", "replay"}, archiveFlags(a, to, at)...)...)
	switch {
	case p.N.N == 0 && p.N.AtLeast:
		p.Nothing = "None of the newest events in this time matches, and the older ones are not searched here: give a time until which they were published, or run the command."
	case p.N.N == 0:
		p.Nothing = "No archived event matches."
	}
	return p, nil
}

// archiveFlags are those of the command that replays the same.
func archiveFlags(a archiveFilter, to string, at pace) (flags []string) {
	if a.Topic == "" && a.Key == "" {
		flags = []string{"--all"}
	}
	for _, flag := range [][2]string{{"--topic", a.Topic}, {"--key", a.Key}, {"--since", a.Since}, {"--until", a.Until}, {"--to", to}, {"--rate", at.Rate}} {
		if flag[1] != "" {
			flags = append(flags, flag[0], flag[1])
		}
	}
	return flags
}

// atLeast is a number of events, in words where it is not the whole.
func atLeast(c outboxadmin.Count) string {
	if c.AtLeast {
		return "more than " + number(c.N)
	}
	return number(c.N)
}

func runArchive(ctx context.Context, db *database, f url.Values, by operator.By) (outcome, error) {
	moment := func(text string) time.Time {
		at, _ := time.Parse(time.RFC3339, text) // the plan has written it; "" is the zero time
		return at
	}
	get := func(name string) string { return strings.TrimSpace(f.Get(name)) }
	id, err := outboxadmin.BeginReplay(ctx, db.Pool, db.Schema, outboxadmin.ReplayConfig{
		ArchiveSelection: outboxadmin.ArchiveSelection{Topic: get("topic"), Key: get("key"), Since: moment(get("since")), Until: moment(get("until"))},
		To:               get("to"), Rate: archivePace(f, usualPace.Rate).Pace.Rate,
	}, by)
	if err != nil {
		return outcome{}, err
	}
	db.continueArchive(id)
	return outcome{Headline: fmt.Sprintf("Replay %d of the archive has begun.", id), Page: archiveReplayPage(id)}, nil
}
