package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// archiveReplay is a replay of archived events as pages show it.
type archiveReplay struct {
	outboxadmin.ReplayStatus
	Replayed, Total int64
	Figures         []figure // the sum is Total
	Pacing          string   // in words
	Here            bool     // this console continues it
	Waits           bool     // perhaps, until relays have sent what is in the outbox
	Of              []header // what it selects
}

// Name, Link and OutOf are those of a line in a list of replays.
func (r archiveReplay) Name() string { return fmt.Sprintf("Replay %d of the archive", r.ID) }

// Link is the page of the replay, below the database's base.
func (r archiveReplay) Link() string { return archiveReplayPage(r.ID) }

// OutOf is how many events the replay has, as far as that is known.
func (r archiveReplay) OutOf() string {
	return atLeast(outboxadmin.Count{N: r.Total, AtLeast: r.Selected.AtLeast})
}

func archiveReplayPage(id int64) string {
	return "/outbox/archive/replay?id=" + strconv.FormatInt(id, 10)
}

func (q *request) viewedArchive(r outboxadmin.ReplayStatus) archiveReplay {
	v := archiveReplay{ReplayStatus: r, Replayed: r.Events, Total: max(r.Selected.N, r.Events), Here: q.db.archiveJobs.Runs(r.ID)}
	done := int(barLength * v.Replayed / max(v.Total, 1))
	v.Figures = []figure{
		{N: int(v.Replayed), Word: "put into the outbox", Shape: "done", Width: done},
		{N: int(v.Total - v.Replayed), Word: "to come", Shape: "pending", X: done, Width: barLength - done},
	}
	v.Pacing = "as fast as relays send them"
	if r.Rate > 0 {
		v.Pacing = "at most " + number(r.Rate) + " per second"
		if left := v.Total - v.Replayed; left > 0 {
			v.Pacing += ", " + words.Duration(time.Duration(left/int64(r.Rate)+1)*time.Second) + " left or more"
		}
	}
	if outbox := q.snapshot().Outbox; outbox != nil {
		v.Waits = r.State == outboxadmin.ReplayRunning && outbox.Pending.AtLeast
	}
	for _, h := range []header{{"topic", r.Selection.Topic}, {"key", r.Selection.Key}, {"since", moment(r.Selection.Since)}, {"until", moment(r.Selection.Until)}, {"to", r.To}} {
		if h.Value != "" {
			v.Of = append(v.Of, h)
		}
	}
	return v
}

// archiveReplays are those that run, and on request those that began lately.
func (q *request) archiveReplays(lately bool) (all []archiveReplay) {
	s := q.snapshot()
	for _, r := range s.Archived {
		if r.State == outboxadmin.ReplayRunning || lately && s.Now.Sub(r.Started) < replaysShown {
			all = append(all, q.viewedArchive(r))
		}
	}
	return all
}

// archiveReplay is the page of one replay of the archive.
func (q *request) archiveReplay() error {
	r, err := q.archiveReplayOf(q.r.URL.Query())
	if err != nil {
		return err
	}
	q.render(http.StatusOK, "page_archive_replay.html", r.Name(), "outbox", r)
	return nil
}

// archiveReplayOf finds the replay that a URL or a form names.
func (q *request) archiveReplayOf(f url.Values) (archiveReplay, error) {
	id, err := strconv.ParseInt(f.Get("id"), 10, 64)
	if err != nil || !q.snapshot().There["outbox"] {
		return archiveReplay{}, errNotFound
	}
	r, err := read(q, fmt.Sprintf("archive replay %d", id), fresh, func(ctx context.Context, db *database) (outboxadmin.ReplayStatus, error) {
		return outboxadmin.ShowReplay(ctx, db.Pool, db.Schema, id)
	})
	if errors.Is(err, outboxadmin.ErrNoSuchReplay) {
		err = fmt.Errorf("%w: no replay of the archive has the ID %d", errNotFound, id)
	}
	return q.viewedArchive(r), err
}

func planArchiveStop(q *request, f url.Values) (plan, error) {
	r, err := q.archiveReplayOf(f)
	id := strconv.FormatInt(r.ID, 10)
	p := plan{
		Question: "Stop replay " + id + " of the archive?", Verb: "Stop the replay", Danger: true, Back: archiveReplayPage(r.ID), Command: q.db.reach.Command(id, "outbox", "stop"),
		Explain: "It stops at " + number(r.Replayed) + " of " + r.OutOf() + ", or a few events later. What is in the outbox is sent. It can be continued.",
	}
	if r.State != outboxadmin.ReplayRunning {
		p.Nothing = "It does not run: " + r.State + "."
	}
	return p, err
}

func planArchiveContinue(q *request, f url.Values) (plan, error) {
	r, err := q.archiveReplayOf(f)
	id := strconv.FormatInt(r.ID, 10)
	p := plan{
		Question: "Continue replay " + id + " of the archive?", Verb: "Continue the replay", Back: archiveReplayPage(r.ID),
		Explain: "It goes on at " + number(r.Replayed) + " of " + r.OutOf() + ", at this pace.",
	}
	if r.Here && r.State == outboxadmin.ReplayRunning {
		p.Question, p.Verb = "Change the pace of replay "+id+" of the archive?", "Change the pace"
	}
	at := archivePace(f, r.Rate)
	p.Pace, p.Wrong = &at, at.wrong
	p.Command = q.db.reach.Command("", append([]string{"outbox", "replay", "--resume", id}, at.flags()...)...)
	if r.State == outboxadmin.ReplayDone {
		p.Nothing = "It is done."
	}
	return p, err
}

func runArchiveStop(ctx context.Context, db *database, f url.Values, by operator.By) (outcome, error) {
	id, err := strconv.ParseInt(f.Get("id"), 10, 64)
	if err == nil {
		err = outboxadmin.StopReplay(ctx, db.Pool, db.Schema, id, by)
	}
	return outcome{Headline: fmt.Sprintf("Replay %d of the archive was stopped.", id), Page: archiveReplayPage(id)}, err
}

func runArchiveContinue(ctx context.Context, db *database, f url.Values, by operator.By) (outcome, error) {
	id, err := strconv.ParseInt(f.Get("id"), 10, 64)
	var before outboxadmin.ReplayStatus
	if err == nil {
		before, err = outboxadmin.ShowReplay(ctx, db.Pool, db.Schema, id)
	}
	if err == nil {
		err = outboxadmin.ResumeReplay(ctx, db.Pool, db.Schema, id, archivePace(f, before.Rate).Pace.Rate, by)
	}
	if err == nil {
		db.continueArchive(id)
	}
	return outcome{Headline: fmt.Sprintf("Replay %d of the archive goes on.", id), Page: archiveReplayPage(id)}, err
}

// continueArchive continues a replay of the archive, as continueReplay does one of dead letters.
func (db *database) continueArchive(id int64) {
	db.persist(db.archiveJobs, "replay of the archive", id, func(ctx context.Context) ([]any, error) {
		r, err := outboxadmin.ContinueReplay(ctx, db.Pool, db.Schema, id)
		return []any{"state", r.State, "replayed", r.Events}, err
	})
}
