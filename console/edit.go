package console

import (
	"bytes"
	"crypto/hmac"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/millrace-go/millrace/console/internal/act"
	"github.com/millrace-go/millrace/console/internal/diff"
	"github.com/millrace-go/millrace/console/internal/mask"
	"github.com/millrace-go/millrace/console/internal/payload"
	"github.com/millrace-go/millrace/console/internal/replays"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

// editPage is the data of page_edit.html.
type editPage struct {
	deadletter.Event
	Text   string // as the form shows it
	Former string // SHA-256 of the payload when the form was made
	Shown  string // signs that the user has seen that payload
	JSON   bool
	Back   string

	Covered bool // the user has not asked to see it
}

// editable returns the text of a payload for the form, or why it cannot be edited.
func (q *request) editable(e payload.Failure) (text, why string) {
	switch {
	case !q.rights.Has(Act | Payloads):
		return "", "You may not edit payloads. Ask for the rights to act and to see payloads."
	case !slices.Contains([]string{"dead", "retrying", "blocked"}, e.State):
		return "", "The payload is not stored here: only the broker has it."
	}
	return e.Text, e.Why
}

// edit shows the form: covered, until the user asks to see the payload.
func (q *request) edit() error {
	f := q.r.URL.Query()
	if q.r.Method == http.MethodPost {
		f = q.r.PostForm
	}
	e, text, err := q.toEdit(f)
	if err != nil {
		return err
	}
	b, err := q.reveal(mask.Body{Text: text}, q.noteEvent(e.Event))
	if err != nil {
		return err
	}
	former := deadletter.SHA256(e.Payload)
	return q.editForm(e, editPage{Text: b.Text, Covered: b.Covered, Former: former, Shown: q.shown(e, former)})
}

func (q *request) editForm(e payload.Failure, p editPage) error {
	p.Event, p.JSON, p.Back = e.Event, json.Valid(e.Payload), deadEventPath(e)
	q.render(http.StatusOK, "page_edit.html", "Edit", "dead", p)
	return nil
}

// shown proves that the user has seen the payload with this SHA-256. Without it planEdit shows no diff, which would reveal the payload.
func (q *request) shown(e payload.Failure, former string) string {
	return q.guard.Token(strings.Join([]string{"edit", q.db.Name, e.EventID, e.Consumer, former}, "\x00"), q.user)
}

// edited shows the form, what it would change or, on request, the form again.
func (q *request) edited() error {
	f := q.r.PostForm
	if f.Has("again") {
		e, _, err := q.toEdit(f)
		if err != nil {
			return err
		}
		return q.editForm(e, editPage{Text: act.Typed(f), Former: f.Get("former"), Shown: f.Get("shown")})
	}
	if !f.Has("payload") {
		return q.edit()
	}
	q.r.SetPathValue("action", "edit")
	return q.confirm(actions()["edit"], f, "", http.StatusOK)
}

// toEdit returns the event to edit, if it may be edited.
func (q *request) toEdit(f url.Values) (e payload.Failure, text string, err error) {
	if !q.rights.Has(Act | Payloads) {
		return e, "", fmt.Errorf("%w: to edit a payload, ask for the rights to act and to see payloads", errForbidden)
	}
	if e, _, err = q.failed(f); err != nil {
		return e, "", err
	}
	text, why := q.editable(e)
	if why != "" {
		return e, "", fmt.Errorf("%w: %s", errForbidden, why)
	}
	return e, text, nil
}

func deadEventPath(e payload.Failure) string {
	return "/dead/event?" + url.Values{"id": {e.EventID}, "consumer": {e.Consumer}}.Encode()
}

var editFields = []string{"id", "consumer", "former", "shown", "payload"}

func planEdit(q *request, f url.Values) (plan, error) {
	if q.r.Method != http.MethodPost {
		return plan{}, errNotFound // a URL must not contain a payload
	}
	e, text, err := q.toEdit(f)
	if err != nil {
		return plan{}, err
	}
	typed := act.Typed(f)
	p := plan{
		Question: "Write this payload of " + e.EventID + "?", Verb: "Write the payload", Back: deadEventPath(e), Again: "/dead/edit",
		Explain: "The event keeps its ID, its headers and its state, " + replays.StateWords([]string{e.State})[0] + " at " + e.Consumer + ". A replay runs it with this payload. The audit gets the SHA-256 of both.",
		Command: q.db.Reach.Command(e.EventID, "dead", "edit", "--consumer", e.Consumer, "--payload-file", "FILE"),
	}
	former := deadletter.SHA256(e.Payload)
	if f.Get("former") != former || !hmac.Equal([]byte(f.Get("shown")), []byte(q.shown(e, former))) { // no diff, which would reveal the payload
		p.Nothing = "The payload was changed meanwhile. Edit it again."
		return p, nil
	}
	p.Diff = diff.Lines(text, typed)
	switch {
	case bytes.Equal(act.Payload(typed), act.Payload(text)):
		p.Nothing = "Nothing is changed."
	case json.Valid(e.Payload) && !json.Valid([]byte(typed)):
		p.Warning = "The payload was JSON, but the new text is not: " + json.Unmarshal([]byte(typed), new(any)).Error() + "."
	}
	return p, nil
}
