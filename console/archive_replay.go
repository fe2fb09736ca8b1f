package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/console/internal/replays"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// archiveReplays are those that run, and on request those that began lately.
func (q *request) archiveReplays(lately bool) (all []replays.Archived) {
	s := q.snapshot()
	for _, r := range s.Archived {
		if r.State == outboxadmin.ReplayRunning || lately && s.Now.Sub(r.Started) < replaysShown {
			all = append(all, replays.ViewArchived(r, q.db.ArchiveJobs.Runs(r.ID), q.snapshot().Outbox))
		}
	}
	return all
}

// replays.Archived is the page of one replay of the archive.
func (q *request) archiveReplay() error {
	r, err := q.archiveReplayOf(q.r.URL.Query())
	if err != nil {
		return err
	}
	q.render(http.StatusOK, "page_archive_replay.html", r.Name(), "outbox", r)
	return nil
}

// archiveReplayOf finds the replay that a URL or a form names.
func (q *request) archiveReplayOf(f url.Values) (replays.Archived, error) {
	id, err := strconv.ParseInt(f.Get("id"), 10, 64)
	if err != nil || !q.snapshot().There["outbox"] {
		return replays.Archived{}, errNotFound
	}
	r, err := read(q, fmt.Sprintf("archive replay %d", id), figures.Fresh, func(ctx context.Context, db *database) (outboxadmin.ReplayStatus, error) {
		return outboxadmin.ShowReplay(ctx, db.Pool, db.Schema, id)
	})
	if errors.Is(err, outboxadmin.ErrNoSuchReplay) {
		err = fmt.Errorf("%w: no replay of the archive has the ID %d", errNotFound, id)
	}
	return replays.ViewArchived(r, q.db.ArchiveJobs.Runs(r.ID), q.snapshot().Outbox), err
}

func planArchiveStop(q *request, f url.Values) (plan, error) {
	r, err := q.archiveReplayOf(f)
	id := strconv.FormatInt(r.ID, 10)
	p := plan{
		Question: "Stop replay " + id + " of the archive?", Verb: "Stop the replay", Danger: true, Back: replays.ArchivePage(r.ID), Command: q.db.Reach.Command(id, "outbox", "stop"),
		Explain: "It stops at " + format.Number(r.Replayed) + " of " + r.OutOf() + ", or a few events later. What is in the outbox is sent. It can be continued.",
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
		Question: "Continue replay " + id + " of the archive?", Verb: "Continue the replay", Back: replays.ArchivePage(r.ID),
		Explain: "It goes on at " + format.Number(r.Replayed) + " of " + r.OutOf() + ", at this pace.",
	}
	if r.Here && r.State == outboxadmin.ReplayRunning {
		p.Question, p.Verb = "Change the pace of replay "+id+" of the archive?", "Change the pace"
	}
	at := replays.ArchivePace(f, r.Rate)
	p.Pace, p.Wrong = &at, at.Wrong
	p.Command = q.db.Reach.Command("", append([]string{"outbox", "replay", "--resume", id}, at.Flags()...)...)
	p.goesOn(r.State, "by "+r.StoppedBy, r.Rate)
	if r.State == outboxadmin.ReplayDone {
		p.Nothing = "It is done."
	}
	return p, err
}
