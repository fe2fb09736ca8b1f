package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/millrace-go/millrace/console/internal/act"
	"github.com/millrace-go/millrace/console/internal/diff"
	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/console/internal/guard"
	"github.com/millrace-go/millrace/console/internal/mask"
	"github.com/millrace-go/millrace/console/internal/replays"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

// maxEdited is the largest payload that a form edits, in bytes. A form may need up to three bytes for each.
const maxEdited = guard.MaxForm / 4

// editPage is the content of the page that edits a payload.
type editPage struct {
	deadletter.Event
	Text   string // as the form shows it
	Former string // SHA-256 of the payload when the form was made
	JSON   bool
	Back   string
}

// editable returns the text of a payload for the form, or why it cannot be edited.
func (q *request) editable(e deadletter.Event) (text, why string) {
	value, isJSON := mask.ParseJSON(e.Payload)
	text = mask.Indented(e.Payload)
	switch {
	case !q.rights.Has(Act | Payloads):
		return "", "You may not edit payloads. Ask for the rights to act and to see payloads."
	case !slices.Contains([]string{"dead", "retrying", "blocked"}, e.State):
		return "", "The broker has this event, and not its payload here."
	case len(e.Payload) != e.Bytes || len(text) > maxEdited:
		return "", fmt.Sprintf("The payload is too large for a form, which takes %s bytes.", format.Number(maxEdited))
	case !utf8.ValidString(text) || strings.ContainsAny(text, "\x00\r"):
		return "", "The payload is not text that a form sends back as it is."
	case len(q.mask) > 0 && (!isJSON || q.mask.Has(value)):
		return "", "The payload has, or may have, fields that are masked."
	}
	return text, ""
}

// edit shows the form.
func (q *request) edit() error {
	e, text, err := q.toEdit(q.r.URL.Query())
	if err != nil {
		return err
	}
	return q.editForm(e, text, deadletter.SHA256(e.Payload))
}

func (q *request) editForm(e deadletter.Event, text, former string) error {
	q.render(http.StatusOK, "page_edit.html", "Edit", "dead", editPage{Event: e, Text: text, Former: former, JSON: json.Valid(e.Payload), Back: deadEventPath(e)})
	return nil
}

// edited shows what the form would change or, on request, the form again.
func (q *request) edited() error {
	f := q.r.PostForm
	if f.Has("again") {
		e, _, err := q.toEdit(f)
		if err != nil {
			return err
		}
		return q.editForm(e, act.Typed(f), f.Get("former"))
	}
	q.r.SetPathValue("action", "edit")
	return q.confirm(actions()["edit"], f, "", http.StatusOK)
}

// toEdit returns the event to edit, if it may be edited.
func (q *request) toEdit(f url.Values) (e deadletter.Event, text string, err error) {
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

func deadEventPath(e deadletter.Event) string {
	return "/dead/event?" + url.Values{"id": {e.EventID}, "consumer": {e.Consumer}}.Encode()
}

var editFields = []string{"id", "consumer", "former", "payload"}

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
		Command: q.db.Reach.Command(e.EventID, "dead", "edit", "--consumer", e.Consumer, "--payload-file", "FILE"), Diff: diff.Lines(text, typed),
	}
	switch {
	case f.Get("former") != deadletter.SHA256(e.Payload):
		p.Nothing = "The payload was changed meanwhile. Edit it again."
	case bytes.Equal(act.Payload(typed), act.Payload(text)):
		p.Nothing = "Nothing is changed."
	case json.Valid(e.Payload) && !json.Valid([]byte(typed)):
		p.Warning = "The payload was JSON, and this is none: " + json.Unmarshal([]byte(typed), new(any)).Error() + "."
	}
	return p, nil
}
