package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/console/internal/replays"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

// replaysShown is how long after its start a replay is listed.
const replaysShown = 24 * time.Hour

// replays returns the running replays and, if lately is true, those that started recently.
func (q *request) replays(lately bool) (all []replays.Replay) {
	s := q.snapshot()
	for _, r := range s.Replays {
		if r.State == deadletter.ReplayRunning || lately && s.Now.Sub(r.Started) < replaysShown {
			all = append(all, replays.View(r, q.db.Jobs.Runs(r.ID)))
		}
	}
	return all
}

// replay serves the page of one replay.
func (q *request) replay() error {
	r, err := q.replayOf(q.r.URL.Query())
	if err != nil {
		return err
	}
	q.render(http.StatusOK, "page_replay.html", "Replay "+strconv.FormatInt(r.ID, 10), "dead", r)
	return nil
}

// replayOf returns the replay that a URL or a form names.
func (q *request) replayOf(f url.Values) (replays.Replay, error) {
	id, err := strconv.ParseInt(f.Get("id"), 10, 64)
	if err != nil || !q.snapshot().There["claim"] {
		return replays.Replay{}, errNotFound
	}
	r, err := read(q, fmt.Sprintf("replay %d", id), figures.Fresh, func(ctx context.Context, db *database) (deadletter.ReplayStatus, error) {
		return deadletter.ShowReplay(ctx, db.Pool, db.Schema, id)
	})
	if errors.Is(err, deadletter.ErrNoSuchReplay) {
		err = fmt.Errorf("%w: no replay has the ID %d, or the audit was purged since", errNotFound, id)
	}
	return replays.View(r, q.db.Jobs.Runs(r.ID)), err
}

var (
	stopFields     = []string{"id"}
	continueFields = []string{"id"}
)

func planStop(q *request, f url.Values) (plan, error) {
	r, err := q.replayOf(f)
	id := strconv.FormatInt(r.ID, 10)
	p := plan{
		Question: "Stop replay " + id + "?", Verb: "Stop the replay", Danger: true, Back: replays.Page(r.ID), Command: q.db.Reach.Command(id, "dead", "stop"),
		Explain: "It stops at " + format.Number(r.Replayed) + " of " + format.Number(r.Total) + ", or a few events later. What was replayed stays so. It can be continued.",
	}
	if r.State != deadletter.ReplayRunning {
		p.Nothing = "It does not run: " + r.State + "."
	}
	return p, err
}

func planContinue(q *request, f url.Values) (plan, error) {
	r, err := q.replayOf(f)
	id := strconv.FormatInt(r.ID, 10)
	p := plan{
		Question: "Continue replay " + id + "?", Verb: "Continue the replay", Back: replays.Page(r.ID),
		Explain: "It goes on at " + format.Number(r.Replayed) + " of " + format.Number(r.Total) + ", at this pace.",
	}
	if r.Here && r.State == deadletter.ReplayRunning {
		p.Question, p.Verb = "Change the pace of replay "+id+"?", "Change the pace"
	}
	at := replays.PaceOf(f, r.Pace)
	p.Pace, p.Wrong = &at, at.Wrong
	p.Command = q.db.Reach.Command("", append([]string{"dead", "replay", "--resume", id}, at.Flags()...)...)
	p.goesOn(r.State, r.Reason, r.Pace)
	if r.State == deadletter.ReplayDone {
		p.Nothing = "It is done."
	}
	return p, err
}

// goesOn makes the console ask again if the replay is stopped, continued or given another pace meanwhile. why is the reason of a stop.
func (p *plan) goesOn(state, why string, pace any) {
	p.Seen, p.Changed = fmt.Sprint(state, " ", why, " ", pace), "Somebody has continued the replay, or changed its pace, meanwhile."
	if state == deadletter.ReplayStopped {
		p.Changed = "The replay stopped meanwhile (" + why + ")."
	}
}
