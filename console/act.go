package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/millrace-go/millrace/console/internal/diff"
	"github.com/millrace-go/millrace/console/internal/filter"
	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/console/internal/mask"
	"github.com/millrace-go/millrace/console/internal/replays"
	"github.com/millrace-go/millrace/internal/operator"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// plan is what an action would do: the dry run that a person confirms.
type plan struct {
	Question string
	Explain  string
	N        outboxadmin.Count // events that are selected; zero for actions that select none
	Lines    []planLine
	Of       string // which of them the lines count; "" for all
	Verb     string // of the button
	Danger   bool
	Command  string        // that does the same
	Back     string        // where the person came from, below the database's base
	Response bool          // it may have a response, as JSON
	Pace     *replays.Pace // nil where it has none
	To       *string       // the topic to replay to, where one may be given
	Wrong    string        // what is wrong with the fields that a person has filled in
	Warning  string        // what to look at before going on
	Diff     []diff.Line
	Again    string // the page that has the form again, for what was filled in there
	Nothing  string // why there is nothing to do
}

// planLine is a part of what is selected.
type planLine struct {
	N    int64
	Text string
}

// outcome is what an action did.
type outcome struct {
	Headline string
	Lines    []planLine
	Back     string
	Page     string // that tells the rest, instead of the lines
}

// action is one that changes something. Both functions get the fields of the form, as the URL of the plan has them.
type action struct {
	fields []string
	plan   func(q *request, f url.Values) (plan, error)
	run    func(ctx context.Context, db *database, f url.Values, by operator.By) (outcome, error)
}

// actions are those that pages offer, by their names in URLs.
func actions() map[string]action {
	return map[string]action{
		"replay":           {deadFields, planReplay, runReplay},
		"discard":          {deadFields, planDiscard, runDiscard},
		"outbox-retry":     {outboxFields, planOutboxRetry, runOutboxRetry},
		"outbox-discard":   {outboxFields, planOutboxDiscard, runOutboxDiscard},
		"stop":             {stopFields, planStop, runStop},
		"continue":         {continueFields, planContinue, runContinue},
		"archive-replay":   {filter.ArchiveNames, planArchive, runArchive},
		"archive-stop":     {stopFields, planArchiveStop, runArchiveStop},
		"archive-continue": {continueFields, planArchiveContinue, runArchiveContinue},
		"pause":            {topicFields, planPause, runPause},
		"resume":           {topicFields, planResume, runResume},
		"resolve":          {resolveFields, planResolve, runResolve},
		"forget":           {forgetFields, planForget, runForget},
		"edit":             {editFields, planEdit, runEdit},
	}
}

// typedAbove is from how many events on a person types the number before they are discarded.
const typedAbove = 100

// typed reports whether a person types the number: where many are discarded, and where nobody knows how many there are.
func (p plan) typed() bool { return p.Danger && (p.N.N > typedAbove || p.N.AtLeast) }

// confirmPage is the content of the page that asks.
type confirmPage struct {
	plan
	Action  string
	Hidden  []mask.Header // fields that the form carries
	Note    string
	Given   string // the response, as it was filled in
	Typed   bool   // the number is asked for
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
	page.Hidden = append(page.Hidden, mask.Header{Name: "expected", Value: strconv.FormatInt(p.N.N, 10)})
	q.render(status, "page_confirm.html", p.Verb, "", page)
	return nil
}

// act runs an action, if what it selects is what the person has confirmed.
func (q *request) act() error {
	a, known := actions()[q.r.PathValue("action")]
	form := q.r.PostForm
	switch {
	case !known:
		return errNotFound
	case !q.rights.Has(Act):
		http.Error(q.w, "You may look. To act, ask for the right to act.", http.StatusForbidden)
		return nil
	case !q.db.acting.TryLock():
		return q.confirm(a, form, "Another action is running on this database. Try again when it has ended.", http.StatusConflict)
	}
	defer q.db.acting.Unlock()
	q.forget()
	p, err := a.plan(q, form)
	if err != nil {
		return err
	}
	expected, _ := strconv.ParseInt(form.Get("expected"), 10, 64) // what is no number differs
	switch typed := strings.ReplaceAll(form.Get("typed"), ",", ""); {
	case p.Nothing != "":
		return q.confirm(a, form, "", http.StatusConflict)
	case p.Wrong != "":
		return q.confirm(a, form, p.Wrong+" Nothing was changed.", http.StatusBadRequest)
	case p.N.N != expected:
		return q.confirm(a, form, fmt.Sprintf("%s became %s meanwhile. Nothing was changed.", format.Number(expected), format.Count(p.N)), http.StatusConflict)
	case p.typed() && typed != strconv.FormatInt(p.N.N, 10):
		return q.confirm(a, form, "Type the number of events to go on. Nothing was changed.", http.StatusBadRequest)
	}
	by := operator.By{Actor: q.user, Note: words.Cut(strings.TrimSpace(form.Get("note")), maxNote)}
	// An action that has begun goes on when the browser leaves: it tells its outcome in the audit.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.ctx()), q.cfg.ActTimeout)
	defer cancel()
	done, err := a.run(ctx, q.db, form, by)
	q.forget()
	if err != nil {
		q.cfg.Logger.ErrorContext(ctx, "console action failed", "action", q.r.PathValue("action"), "user", q.user, "error", err)
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("it did not end within %s: what it has changed stays changed, and the audit tells it", q.cfg.ActTimeout)
		}
		return q.confirm(a, form, "It failed: "+format.Error(err), http.StatusInternalServerError)
	}
	q.cfg.Logger.InfoContext(ctx, "console action", "action", q.r.PathValue("action"), "user", q.user, "outcome", done.Headline)
	if done.Page != "" {
		http.Redirect(q.w, q.r, q.cfg.Prefix+"/"+q.db.Name+done.Page, http.StatusSeeOther)
		return nil
	}
	q.render(http.StatusOK, "page_done.html", "Done", "", done)
	return nil
}

// maxNote is how many characters a note has.
const maxNote = 500
