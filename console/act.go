package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/millrace-go/millrace/console/internal/act"
	"github.com/millrace-go/millrace/console/internal/diff"
	"github.com/millrace-go/millrace/console/internal/filter"
	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/console/internal/mask"
	"github.com/millrace-go/millrace/console/internal/replays"
	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// plan describes what an action would do, for the user to confirm.
type plan struct {
	Question string
	Explain  string
	N        outboxadmin.Count // number of selected events; zero for actions that select none
	Lines    []act.Line
	Seen     string // identifies what the user decides about: if it differs later, the user is asked again
	Changed  string // why it differs; "" if other events match
	Of       string // which events the lines count; "" for all
	Verb     string // of the button
	Danger   bool
	Command  string        // the equivalent command
	Back     string        // the previous page, below the database's base
	Response bool          // the form has a field for a response, as JSON
	Pace     *replays.Pace // nil: the action has no pace
	To       *string       // the topic to replay to; nil: not allowed
	Wrong    string        // errors in the form's fields
	Warning  string        // what to check before confirming
	Diff     []diff.Line
	Again    string // the page with the form, with its values
	Nothing  string // why there is nothing to do
}

// action is an action that changes something. Both functions get the form's fields, which the URL of the plan also has.
type action struct {
	fields []string
	plan   func(q *request, f url.Values) (plan, error)
	run    func(ctx context.Context, db *act.Database, f url.Values, by operator.By) (act.Outcome, error)
}

// actions maps names in URLs to actions.
func actions() map[string]action {
	return map[string]action{
		"replay":           {deadFields, planReplay, act.Replay},
		"discard":          {deadFields, planDiscard, act.Discard},
		"outbox-retry":     {outboxFields, planOutboxRetry, act.OutboxRetry},
		"outbox-discard":   {outboxFields, planOutboxDiscard, act.OutboxDiscard},
		"stop":             {stopFields, planStop, act.Stop},
		"continue":         {continueFields, planContinue, act.Continue},
		"archive-replay":   {filter.ArchiveNames, planArchive, act.Archive},
		"archive-stop":     {stopFields, planArchiveStop, act.ArchiveStop},
		"archive-continue": {continueFields, planArchiveContinue, act.ArchiveContinue},
		"pause":            {topicFields, planPause, act.Pause},
		"resume":           {topicFields, planResume, act.Resume},
		"resolve":          {resolveFields, planResolve, act.Resolve},
		"forget":           {forgetFields, planForget, act.Forget},
		"edit":             {editFields, planEdit, act.Edit},
	}
}

// typedAbove is the number of events above which a user must type the number to discard them.
const typedAbove = 100

// typed reports whether the user must type the number: if many events are discarded, or if their number is not known.
func (p plan) typed() bool { return p.Danger && (p.N.N > typedAbove || p.N.AtLeast) }

// confirmPage is the data of page_confirm.html.
type confirmPage struct {
	plan
	Action  string
	Hidden  []mask.Header // hidden fields of the form
	Note    string
	Given   string // the response as the user entered it
	Typed   bool   // the user must type the number
	Problem string // why the form is shown again
}

// plan shows what an action would do. It changes nothing.
func (q *request) plan() error {
	a, known := actions()[q.r.PathValue("action")]
	if !known {
		return errNotFound
	}
	return q.confirm(a, q.r.URL.Query(), "", http.StatusOK)
}

func (q *request) confirm(a action, form url.Values, problem string, status int) error {
	p, err := a.plan(q, form)
	if err != nil {
		return err
	}
	page := confirmPage{plan: p, Action: q.r.PathValue("action"), Note: form.Get("note"), Given: form.Get("response"), Problem: problem, Typed: p.typed()}
	for _, name := range a.fields {
		for _, value := range form[name] {
			page.Hidden = append(page.Hidden, mask.Header{Name: name, Value: value})
		}
	}
	page.Hidden = append(page.Hidden, mask.Header{Name: "expected", Value: act.Expected(p.N)}, mask.Header{Name: "seen", Value: p.Seen})
	q.render(status, "page_confirm.html", p.Verb, "", page)
	return nil
}

// differs returns how the plan differs from what the form has confirmed, or "".
func (p plan) differs(form url.Values) string {
	if other := act.NumberDiffers(form, p.N); other != "" {
		return other
	}
	if form.Get("seen") != p.Seen {
		return cmp.Or(p.Changed, "The same number of events matches, but they are not the same events as before.")
	}
	return ""
}

// act runs an action, if its selection is still the one that the user has confirmed.
func (q *request) act() error {
	a, known := actions()[q.r.PathValue("action")]
	form := q.r.PostForm
	switch {
	case !known:
		return errNotFound
	case !q.rights.Has(Act):
		http.Error(q.w, "You may only look. Ask for the right to act.", http.StatusForbidden)
		return nil
	}
	if seconds := q.wait(q.actions); seconds > 0 {
		return q.confirm(a, form, "You act too often. Wait "+format.Plural(seconds, "second", "seconds")+". Nothing was changed.", http.StatusTooManyRequests)
	}
	if !q.db.acting.TryLock() {
		return q.confirm(a, form, "Another action is running on this database. Try again when it has ended.", http.StatusConflict)
	}
	defer q.db.acting.Unlock()
	q.forget()
	if q.snapshot().Error != "" { // the plan would be that of old figures
		return q.confirm(a, form, "The database does not answer. Nothing was changed.", http.StatusServiceUnavailable)
	}
	p, err := a.plan(q, form)
	if err != nil {
		return err
	}
	differs := p.differs(form)
	switch typed := strings.ReplaceAll(form.Get("typed"), ",", ""); {
	case p.Nothing != "":
		return q.confirm(a, form, "", http.StatusConflict)
	case p.Wrong != "":
		return q.confirm(a, form, p.Wrong+" Nothing was changed.", http.StatusBadRequest)
	case differs != "":
		return q.confirm(a, form, differs+" Nothing was changed.", http.StatusConflict)
	case p.typed() && typed != strconv.FormatInt(p.N.N, 10):
		return q.confirm(a, form, "Type the number of events to go on. Nothing was changed.", http.StatusBadRequest)
	}
	by := operator.By{Actor: q.user, Note: words.Cut(strings.Join(strings.Fields(form.Get("note")), " "), maxNote)}
	// An action continues when the browser disconnects; the audit has its outcome.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.ctx()), q.cfg.ActTimeout)
	defer cancel()
	done, err := a.run(ctx, &q.db.Database, form, by)
	q.forget()
	if errors.Is(err, act.ErrChanged) {
		return q.confirm(a, form, words.Sentence(err.Error())+". Nothing was changed.", http.StatusConflict)
	}
	if err != nil {
		q.cfg.Logger.ErrorContext(ctx, "console action failed", "action", q.r.PathValue("action"), "user", q.user, "error", err)
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("it did not finish within %s. The audit lists what was changed; nothing else was. The command has no time limit: %s", q.cfg.ActTimeout, p.Command)
		}
		failed := "It failed: " + format.Error(err)
		if err := q.confirm(a, form, failed, http.StatusInternalServerError); err != nil { // err is about the page, not the action
			q.render(http.StatusInternalServerError, "page_error.html", "Error", "", failed)
		}
		return nil
	}
	q.cfg.Logger.InfoContext(ctx, "console action", "action", q.r.PathValue("action"), "user", q.user, "outcome", done.Headline)
	if done.Page != "" {
		http.Redirect(q.w, q.r, q.cfg.Prefix+"/"+q.db.Name+done.Page, http.StatusSeeOther)
		return nil
	}
	q.render(http.StatusOK, "page_done.html", "Done", "", done)
	return nil
}

// maxNote bounds the length of a note, in characters. In UTF-8 it may not be longer than the 1,000 bytes that a decision about an effect takes.
const maxNote = 250

// maxAtOnce bounds the events of an action that one request runs: more would take longer than ActTimeout.
const maxAtOnce = 50_000

// tooMany refuses selections that take too long. atMost is an upper bound for events that were not counted.
func (p *plan) tooMany(atMost int64) {
	if !p.N.AtLeast {
		atMost = p.N.N
	}
	if p.Nothing == "" && atMost > maxAtOnce {
		p.Nothing = "The selection has, or may have, more than " + format.Number(maxAtOnce) + " events: too many for one request. Narrow the filter, or run the command: " + p.Command
	}
}
