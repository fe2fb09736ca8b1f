package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/millrace/console/internal/jobs"
	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// replayView is a replay as pages show it.
type replayView struct {
	deadletter.ReplayStatus
	Total   int
	Figures []figure // what became of its events; the sum is Total
	Pacing  string   // in words
	Here    bool     // this console continues it
	Waits   bool     // until consumers have tried what was replayed
	Of      []header // what it selects
}

// figure is a number of events, and where they stand in the bar, whose length is barLength.
type figure struct {
	N           int
	Word, Shape string
	X, Width    int
}

// Name, Link and OutOf are those of a line in a list of replays.
func (v replayView) Name() string { return fmt.Sprintf("Replay %d", v.ID) }

// Link is the page of the replay, below the database's base.
func (v replayView) Link() string { return replayPage(v.ID) }

// OutOf is how many events the replay has.
func (v replayView) OutOf() string { return number(v.Total) }

const (
	barLength = 1000
	// maxReplays is how many replays the snapshot has, and replaysShown for how long after its beginning a page lists one.
	maxReplays   = 10
	replaysShown = 24 * time.Hour
	maxRate      = 1_000_000 // events a second
)

func (db *database) viewed(r deadletter.ReplayStatus) replayView {
	v := replayView{ReplayStatus: r, Total: max(r.Selected, r.Replayed+r.InFlight), Here: db.jobs.Runs(r.ID)}
	left, toCome := r.InFlight+r.Superseded, v.Total-r.Replayed-r.InFlight
	if r.State == deadletter.ReplayDone { // what did not match any more was left, too
		left, toCome = left+toCome, 0
	}
	v.Figures = []figure{
		{N: r.Handled, Word: "handled", Shape: "done"},
		{N: r.Retrying, Word: "retrying", Shape: "retrying"},
		{N: r.Dead, Word: "dead again", Shape: "dead"},
		{N: r.Untried, Word: "not tried yet", Shape: "run"},
		{N: left, Word: "left out", Shape: "discarded"},
		{N: toCome, Word: "to come", Shape: "pending"},
	}
	sum := 0
	for i := range v.Figures {
		f := &v.Figures[i]
		f.X = barLength * sum / max(v.Total, 1)
		sum += f.N
		f.Width = barLength*sum/max(v.Total, 1) - f.X
	}
	v.Pacing = "as fast as consumers handle them"
	if r.Pace.Rate > 0 {
		v.Pacing = "at most " + number(r.Pace.Rate) + " per second"
		if r.State == deadletter.ReplayRunning && toCome > 0 {
			v.Pacing += ", " + words.Duration(time.Duration(toCome/r.Pace.Rate+1)*time.Second) + " left or more"
		}
	}
	v.Reason = strings.TrimPrefix(r.Reason, "stopped ") // the state says that
	v.Waits = r.State == deadletter.ReplayRunning && r.Pace.MaxFailed < 1 && toCome > 0 && r.Untried >= max(r.Replayed-r.Untried, 20)
	s := r.Selection
	for _, h := range []header{
		{"state", strings.Join(stateWords(s.States), ", ")},
		{"consumer", s.Consumer},
		{"topic", s.Topic},
		{"key", s.Key},
		{"cause", s.Group},
		{"reason", s.Reason},
		{"since", moment(s.Since)},
		{"until", moment(s.Until)},
		{"events", words.Cut(strings.Join(s.EventIDs, ", "), 300)},
	} {
		if h.Value != "" {
			v.Of = append(v.Of, h)
		}
	}
	return v
}

func stateWords(states []string) (all []string) {
	for _, s := range states {
		all = append(all, words.ClaimStates.Of(s))
	}
	return all
}

func moment(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}

// replays are those that run, and on request those that began lately.
func (q *request) replays(lately bool) (all []replayView) {
	s := q.snapshot()
	for _, r := range s.Replays {
		if r.State == deadletter.ReplayRunning || lately && s.Now.Sub(r.Started) < replaysShown {
			all = append(all, q.db.viewed(r))
		}
	}
	return all
}

// replay is the page of one replay.
func (q *request) replay() error {
	r, err := q.replayOf(q.r.URL.Query())
	if err != nil {
		return err
	}
	q.render(http.StatusOK, "page_replay.html", "Replay "+strconv.FormatInt(r.ID, 10), "dead", r)
	return nil
}

// replayOf finds the replay that a URL or a form names.
func (q *request) replayOf(f url.Values) (replayView, error) {
	id, err := strconv.ParseInt(f.Get("id"), 10, 64)
	if err != nil || !q.snapshot().There["claim"] {
		return replayView{}, errNotFound
	}
	r, err := read(q, fmt.Sprintf("replay %d", id), fresh, func(ctx context.Context, db *database) (deadletter.ReplayStatus, error) {
		return deadletter.ShowReplay(ctx, db.Pool, db.Schema, id)
	})
	if errors.Is(err, deadletter.ErrNoSuchReplay) {
		err = fmt.Errorf("%w: no replay has the ID %d, or the audit was purged since", errNotFound, id)
	}
	return q.db.viewed(r), err
}

func replayPage(id int64) string { return "/replay?id=" + strconv.FormatInt(id, 10) }

// hasPace reports whether a form has a pace, as a person fills it in: events a second, and the percentage that may fail again.
func hasPace(f url.Values) bool { return f.Has("rate") || f.Has("failed") }

// usualPace is what a form proposes.
var usualPace = deadletter.Pace{Rate: 50, MaxFailed: 0.05}

// pace is how fast a replay goes, as a form has it.
type pace struct {
	Rate, Failed string // events a second, and the percentage of events that may fail again; "" for no limit
	Unguarded    bool   // it has no such percentage
	wrong        string
	deadletter.Pace
}

// paceOf reads the pace of a form, or takes another one where the form has none.
func paceOf(f url.Values, otherwise deadletter.Pace) (p pace) {
	if !hasPace(f) {
		p = pace{Failed: strconv.FormatFloat(otherwise.MaxFailed*100, 'f', -1, 64), Pace: otherwise}
		if otherwise.Rate > 0 {
			p.Rate = strconv.Itoa(otherwise.Rate)
		}
		return p
	}
	p = pace{Rate: strings.TrimSpace(f.Get("rate")), Failed: strings.TrimSpace(f.Get("failed")), Pace: deadletter.Pace{MaxFailed: 1}}
	var err error
	if p.Rate != "" {
		if p.Pace.Rate, err = strconv.Atoi(p.Rate); err != nil || p.Pace.Rate < 1 || p.Pace.Rate > maxRate {
			p.wrong = fmt.Sprintf("The number of events per second is %q: want 1 to %d, or nothing for no limit.", p.Rate, maxRate)
		}
	}
	if p.Failed != "" {
		percent, err := strconv.ParseFloat(p.Failed, 64)
		if err != nil || !(percent >= 0 && percent <= 100) {
			p.wrong = fmt.Sprintf("The percentage that may fail again is %q: want 0 to 100, or nothing for no limit.", p.Failed)
		}
		p.MaxFailed = percent / 100
	}
	return p
}

// flags are those of the command.
func (p pace) flags() (flags []string) {
	for _, flag := range [][2]string{{"--rate", p.Rate}, {"--max-failed", p.Failed}} {
		if flag[1] != "" {
			flags = append(flags, flag[0], flag[1])
		}
	}
	return flags
}

var (
	stopFields     = []string{"id"}
	continueFields = []string{"id"}
)

func planStop(q *request, f url.Values) (plan, error) {
	r, err := q.replayOf(f)
	id := strconv.FormatInt(r.ID, 10)
	p := plan{
		Question: "Stop replay " + id + "?", Verb: "Stop the replay", Danger: true, Back: replayPage(r.ID), Command: q.db.reach.Command(id, "dead", "stop"),
		Explain: "It stops at " + number(r.Replayed) + " of " + number(r.Total) + ", or a few events later. What was replayed stays so. It can be continued.",
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
		Question: "Continue replay " + id + "?", Verb: "Continue the replay", Back: replayPage(r.ID),
		Explain: "It goes on at " + number(r.Replayed) + " of " + number(r.Total) + ", at this pace.",
	}
	if r.Here && r.State == deadletter.ReplayRunning {
		p.Question, p.Verb = "Change the pace of replay "+id+"?", "Change the pace"
	}
	at := paceOf(f, r.Pace)
	p.Pace, p.Wrong = &at, at.wrong
	p.Command = q.db.reach.Command("", append([]string{"dead", "replay", "--resume", id}, at.flags()...)...)
	if r.State == deadletter.ReplayDone {
		p.Nothing = "It is done."
	}
	return p, err
}

func runStop(ctx context.Context, db *database, f url.Values, by operator.By) (outcome, error) {
	id, err := strconv.ParseInt(f.Get("id"), 10, 64)
	if err == nil {
		err = deadletter.StopReplay(ctx, db.Pool, db.Schema, id, by)
	}
	return outcome{Headline: fmt.Sprintf("Replay %d was stopped.", id), Page: replayPage(id)}, err
}

func runContinue(ctx context.Context, db *database, f url.Values, by operator.By) (outcome, error) {
	id, err := strconv.ParseInt(f.Get("id"), 10, 64)
	if err == nil {
		var pace *deadletter.Pace // its own
		if hasPace(f) {
			given := paceOf(f, deadletter.Pace{})
			pace = &given.Pace
		}
		err = deadletter.ResumeReplay(ctx, db.Pool, db.Schema, id, pace, by)
	}
	if err == nil {
		db.continueReplay(id)
	}
	return outcome{Headline: fmt.Sprintf("Replay %d goes on.", id), Page: replayPage(id)}, err
}

const (
	// triesOfReplay is how often a replay is continued that fails each time, and pauseOfReplay how long after.
	triesOfReplay = 20
	pauseOfReplay = 3 * time.Second
)

func (db *database) continueReplay(id int64) {
	db.persist(db.jobs, "replay", id, func(ctx context.Context) ([]any, error) {
		r, err := deadletter.ContinueReplay(ctx, db.Pool, db.Schema, id, nil)
		return []any{"state", r.State, "reason", r.Reason, "replayed", r.Replayed}, err
	})
}

// persist continues a replay until it has ended or was stopped, or the console is closed. The replay stays in the database then,
// and goes on when somebody continues it. What continueReplay returns is for the log.
func (db *database) persist(running *jobs.Jobs, what string, id int64, continueReplay func(context.Context) ([]any, error)) {
	log := db.log.With("database", db.Name, what, id)
	running.Start(id, func(ctx context.Context) {
		for tries := 1; ; tries++ {
			began := time.Now()
			ended, err := continueReplay(ctx)
			switch {
			case err == nil:
				log.InfoContext(ctx, "replay ended", ended...)
				return
			case ctx.Err() != nil || errors.Is(err, deadletter.ErrNoSuchReplay) || errors.Is(err, outboxadmin.ErrNoSuchReplay):
				return
			case time.Since(began) > time.Minute: // it was continued meanwhile
				tries = 1
			case tries == triesOfReplay:
				log.ErrorContext(ctx, "replay is not continued any more", "error", err)
				return
			}
			log.WarnContext(ctx, "replay cannot be continued now", "error", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(pauseOfReplay):
			}
		}
	})
}
