// Package filter converts the filter of dead letters between the text that a user types, URL parameters, a selection of events,
// and flags of the command.
package filter

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

// Names are the names that a filter may have, in the order of its text.
var Names = []string{"state", "consumer", "topic", "key", "group", "reason", "since", "until", "event"}

// storedStates are the states of failed events in the database.
var storedStates = []string{"dead", "retrying", "blocked", "nacked"}

// maxText bounds the length of a filter, in bytes.
const maxText = 2000

// Token is one condition.
type Token struct {
	Name, Value string
	Problem     string // why it is wrong; "" if it is not
}

// Filter is the filter that a user entered. The zero Filter selects all dead letters.
type Filter struct {
	Tokens []Token
}

// Parse reads a text of conditions name:value or name:"a value", separated by spaces. Between quotes "" is a quote.
func Parse(text string) Filter {
	var f Filter
	if len(text) > maxText {
		return Filter{Tokens: []Token{{Name: "filter", Problem: fmt.Sprintf("it has %d bytes: want %d at most", len(text), maxText)}}}
	}
	for text = strings.TrimLeftFunc(text, unicode.IsSpace); text != ""; text = strings.TrimLeftFunc(text, unicode.IsSpace) {
		var word strings.Builder
		quoted, closed := false, false // closed: a quote has just ended the quoted part
		end := len(text)
		for i, r := range text {
			if r == '"' {
				if closed {
					word.WriteRune(r)
				}
				quoted, closed = !quoted, quoted
				continue
			}
			closed = false
			if unicode.IsSpace(r) && !quoted {
				end = i
				break
			}
			word.WriteRune(r)
		}
		text = text[end:]
		name, value, found := strings.Cut(word.String(), ":")
		if !found {
			name, value = "event", word.String()
		}
		f.Tokens = append(f.Tokens, Token{Name: strings.ToLower(name), Value: value})
	}
	return f.checked()
}

// FromQuery reads URL parameters. It ignores those that are not in Names.
func FromQuery(q url.Values) Filter {
	var f Filter
	for _, name := range Names {
		for _, value := range q[name] {
			if value != "" {
				f.Tokens = append(f.Tokens, Token{Name: name, Value: value})
			}
		}
	}
	return f.checked()
}

// checked sets the Problem of wrong tokens.
func (f Filter) checked() Filter {
	seen := map[string]bool{}
	for i := range f.Tokens {
		t := &f.Tokens[i]
		_, err := words.ParseMoment(t.Value, time.Time{}.AddDate(3000, 0, 0))
		switch {
		case !slices.Contains(Names, t.Name):
			t.Problem = "no such name: want " + words.Either(Names)
		case t.Value == "":
			t.Problem = "its value is missing"
		case len(t.Value) > maxText:
			t.Value, t.Problem = "", fmt.Sprintf("its value has %d bytes: want %d at most", len(t.Value), maxText)
		case !utf8.ValidString(t.Value) || strings.ContainsRune(t.Value, 0):
			t.Problem = "its value contains an invalid character"
		case seen[t.Name] && t.Name != "event":
			t.Problem = "it was given before"
		case t.Name == "state" && len(words.ClaimStates.Named(t.Value, storedStates...)) == 0:
			t.Problem = "want " + words.Either(words.ClaimStates.Choice(storedStates))
		case (t.Name == "since" || t.Name == "until") && err != nil:
			t.Problem = err.Error()
		}
		seen[t.Name] = true
	}
	return f
}

// Err returns the problems of wrong tokens, or nil.
func (f Filter) Err() error {
	var errs []error
	for _, t := range f.Tokens {
		if t.Problem != "" {
			errs = append(errs, fmt.Errorf("%s: %s", t.Name, t.Problem))
		}
	}
	return errors.Join(errs...)
}

// Get returns the value for a name, or "".
func (f Filter) Get(name string) string {
	for _, t := range f.Tokens {
		if t.Name == name && t.Problem == "" {
			return t.Value
		}
	}
	return ""
}

// With returns the filter with another value for the name; "" removes the name.
func (f Filter) With(name, value string) Filter {
	var g Filter
	for _, t := range f.Tokens {
		if t.Name != name {
			g.Tokens = append(g.Tokens, t)
		}
	}
	if value != "" {
		g.Tokens = append(g.Tokens, Token{Name: name, Value: value})
	}
	return g.checked()
}

// Without returns the filter without token i.
func (f Filter) Without(i int) Filter {
	return Filter{Tokens: slices.Delete(slices.Clone(f.Tokens), i, i+1)}.checked()
}

// Query returns the filter as URL parameters, without wrong tokens.
func (f Filter) Query() url.Values {
	q := url.Values{}
	for _, t := range f.Tokens {
		if t.Problem == "" {
			q.Add(t.Name, t.Value)
		}
	}
	return q
}

// Text returns the filter as a user types it.
func (f Filter) Text() string {
	var all []string
	for _, t := range f.Tokens {
		value := t.Value
		if strings.ContainsFunc(value, func(r rune) bool { return r == '"' || unicode.IsSpace(r) }) {
			value = `"` + strings.ReplaceAll(value, `"`, `""`) + `"`
		}
		all = append(all, t.Name+":"+value)
	}
	return strings.Join(all, " ")
}

// State returns the word for the selected states.
func (f Filter) State() string {
	if s := f.Get("state"); s != "" {
		return s
	}
	return "dead"
}

// Selection returns the selection of the filter. now is the current time, for relative times.
func (f Filter) Selection(now time.Time) deadletter.Selection {
	s := deadletter.Selection{
		Consumer: f.Get("consumer"), Topic: f.Get("topic"), Key: f.Get("key"), Group: f.Get("group"), Reason: f.Get("reason"),
		States: words.ClaimStates.Named(f.State(), storedStates...),
	}
	for _, t := range f.Tokens {
		if t.Name == "event" && t.Problem == "" {
			s.EventIDs = append(s.EventIDs, t.Value)
		}
	}
	if at, err := words.ParseMoment(f.Get("since"), now); err == nil {
		s.Since = at
	}
	if at, err := words.ParseMoment(f.Get("until"), now); err == nil {
		s.Until = at
	}
	return s
}

// Fixed returns the filter with times in place of relative ones, such as 1h, and writes them into the form: otherwise it would select
// other events a minute later.
func (f Filter) Fixed(now time.Time, form url.Values) Filter {
	for _, name := range []string{"since", "until"} {
		at, err := words.ParseMoment(f.Get(name), now)
		if value := f.Get(name); value != "" && err == nil {
			f = f.With(name, at.UTC().Format(time.RFC3339Nano))
			form.Set(name, f.Get(name))
		}
	}
	return f
}

// Sentence describes the selection.
func (f Filter) Sentence() string {
	subject := map[string]string{"dead": "Dead letters", "retrying": "Events that are retried", "blocked": "Events that are blocked", "all": "Events that failed"}[f.State()]
	var b strings.Builder
	b.WriteString(subject)
	for _, part := range [][2]string{
		{"consumer", " of "}, {"topic", " of topic "}, {"key", " of key "}, {"group", " with cause "}, {"reason", " with reason "}, {"since", " that failed since "}, {"until", " that failed before "}, {"event", " with ID "},
	} {
		if value := f.Get(part[0]); value != "" {
			b.WriteString(part[1] + value)
		}
	}
	return b.String() + "."
}

// Flags returns the flags of "millrace dead" for the same selection, and the IDs of events.
func (f Filter) Flags() (flags, ids []string) {
	for _, name := range Names {
		switch value := f.Get(name); {
		case name == "event":
			ids = f.Selection(time.Time{}).EventIDs
		case value != "":
			flags = append(flags, "--"+name, value)
		}
	}
	if len(flags) == 0 && len(ids) == 0 {
		flags = []string{"--all"}
	}
	return flags, ids
}
