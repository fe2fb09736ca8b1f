package console

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/millrace-go/millrace/console/internal/act"
	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/console/internal/filter"
	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/console/internal/replays"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// archivePage is the data of page_archive.html.
type archivePage struct {
	filter.Archive
	Query   template.URL
	Unused  bool // the schema has no outbox
	Empty   bool // the archive is empty
	Report  outboxadmin.ArchiveReport
	Total   outboxadmin.Count // events that match
	Topics  []outboxadmin.ArchivedTopic
	Events  []outboxadmin.ArchivedEvent
	Behind  bool         // it is not the first page
	Next    template.URL // the query of the next page; "" for none
	Replays []replays.Archived
	Failure string // why counting or listing failed
}

func (q *request) archive() error {
	values := q.r.URL.Query()
	p := archivePage{Archive: filter.ArchiveFromQuery(values, q.snapshot().Now)}
	p.Query = template.URL(p.Archive.Query().Encode()) // Encode has escaped it
	behind, ok := filter.ParsePosition(values.Get("behind"))
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
		p.Report, err = read(q, "archive", figures.Fresh, func(ctx context.Context, db *database) (outboxadmin.ArchiveReport, error) {
			return outboxadmin.InspectArchive(ctx, db.Pool, db.Schema)
		})
		p.Empty = p.Report.First == nil && err == nil
		if err == nil {
			err = p.fill(q, behind, values.Get("behind"))
		}
		if err != nil {
			p.Failure = format.Error(err)
		}
	}
	q.render(status, "page_archive.html", "Archive", "outbox", p)
	return nil
}

// fill counts the matching events, and lists one page of them.
func (p *archivePage) fill(q *request, behind outboxadmin.ArchivePosition, at string) error {
	sample, err := q.archiveSample(p.Archive)
	if err != nil {
		return err
	}
	p.Total, p.Topics = sample.Selected, sample.Topics[:min(len(sample.Topics), maxListed)]
	type list struct {
		events []outboxadmin.ArchivedEvent
		next   *outboxadmin.ArchivePosition
	}
	l, err := read(q, "archive list "+at+" "+string(p.Query), figures.Fresh, func(ctx context.Context, db *database) (l list, err error) {
		l.events, l.next, err = outboxadmin.ListArchive(ctx, db.Pool, db.Schema, p.ArchiveSelection, behind, maxListed)
		return l, err
	})
	if p.Events = l.events; l.next != nil {
		next := p.Archive.Query()
		next.Set("behind", filter.PositionText(*l.next))
		p.Next = template.URL(next.Encode()) // Encode has escaped it
	}
	return err
}

// archiveSample counts the newest matching events.
func (q *request) archiveSample(f filter.Archive) (outboxadmin.ArchiveSample, error) {
	return read(q, "archive sample "+f.Query().Encode(), figures.Fresh, func(ctx context.Context, db *database) (outboxadmin.ArchiveSample, error) {
		return outboxadmin.SampleArchive(ctx, db.Pool, db.Schema, f.ArchiveSelection)
	})
}

func planArchive(q *request, f url.Values) (p plan, err error) {
	if !q.snapshot().There["outbox"] {
		return p, errNotFound
	}
	if why := q.snapshot().Errors["outbox"]; why != "" { // which replays run is not known
		return p, errors.New(why)
	}
	a := filter.ArchiveFromQuery(f, q.snapshot().Now)
	if a.Wrong != "" {
		return p, fmt.Errorf("%w: %s", errFilter, a.Wrong)
	}
	p.Back = "/outbox/archive?" + a.Query().Encode()
	// The selection gets a fixed end, so that it does not grow while the user reads its number of events. Its beginning is fixed
	// too.
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
	p.Seen, p.Changed = replays.Newest(q.snapshot().Archived), "A replay has begun meanwhile."
	many := format.AtLeast(p.N)
	for _, t := range sample.Topics[:min(len(sample.Topics), 10)] {
		p.Lines = append(p.Lines, act.Line{N: t.Events, Text: t.Topic})
	}
	if more := len(sample.Topics) - 10; more > 0 {
		p.Lines = append(p.Lines, act.Line{N: p.N.N - act.Sum(p.Lines), Text: "of " + format.Plural(more, "other topic", "other topics")})
	}
	if p.N.AtLeast {
		p.Of, p.Danger, p.Warning = "of the newest in this time", true, notCounted
	}
	p.Warning = replays.Warn(p.Warning, replays.BesideArchived(q.archiveReplays(false), a.ArchiveSelection)...)
	p.Question, p.Verb = "Replay "+many+" archived "+words.Pick(p.N.N, "event?", "events?"), "Replay "+many+" "+words.Pick(p.N.N, "event", "events")
	p.Explain = "They get into the outbox again, with the IDs that they had, and relays send them. Consumers ignore what they have processed. New events of a key may come before its replayed ones."
	to := strings.TrimSpace(f.Get("to"))
	at := replays.ArchivePace(f, replays.Usual.Rate)
	p.To, p.Pace, p.Wrong = &to, &at, at.Wrong
	if !filter.Usable(to) {
		to, p.Wrong = "", "The topic contains an invalid character, or it is too long."
	}
	p.Command = q.db.Reach.Command("", append([]string{"outbox", "replay"}, a.Flags(to, at.Rate)...)...)
	switch {
	case !p.N.Known():
		p.Nothing = "None of the newest events in this time matches, and the older ones are not searched here: give a time until which they were published, or run the command."
	case p.N.N == 0:
		p.Nothing = "No archived event matches."
	}
	return p, nil
}
