// Package filter is the filter of the page of dead letters: a text that a person types, the same as a URL, as a selection of events,
// and as the flags of the command.
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

// Names are those that a filter may have, in the order in which they are written.
var Names = []string{"state", "consumer", "topic", "key", "group", "reason", "since", "until", "event"}

// storedStates are those of events that failed.
var storedStates = []string{"dead", "retrying", "blocked", "nacked"}

// maxText is how many bytes a filter may have.
const maxText = 2000

// Token is one condition.
type Token struct {
	Name, Value string
	Problem     string // what is wrong with it; "" for nothing
}

// Filter is what a person asked for. The zero Filter asks for all dead letters.
type Filter struct {
	Tokens []Token
}

// Parse reads what was typed: name:value, or name:"a value", separated by spaces.
func Parse(text string) Filter {
	var f Filter
	if len(text) > maxText {
		return Filter{Tokens: []Token{{Name: "filter", Problem: fmt.Sprintf("it has %d bytes: want %d at most", len(text), maxText)}}}
	}
	for text = strings.TrimLeftFunc(text, unicode.IsSpace); text != ""; text = strings.TrimLeftFunc(text, unicode.IsSpace) {
		var word strings.Builder
		quoted := false
		end := len(text)
		for i, r := range text {
			if r == '"' {
				quoted = !quoted
				continue
			}
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

// FromQuery reads the parameters of a URL. Others than Names are ignored.
func FromQuery(q url.Values) Filter {
	var f Filter
	for _, name := range Names {
		for _, value := range q[name] {
			if value != "" && len(value) <= maxText {
				f.Tokens = append(f.Tokens, Token{Name: name, Value: value})
			}
		}
	}
	return f.checked()
}

// checked notes what is wrong with the tokens.
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
		case !utf8.ValidString(t.Value) || strings.ContainsRune(t.Value, 0):
			t.Problem = "its value has a byte that no name has"
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

// Err is not nil where a token is wrong.
func (f Filter) Err() error {
	var errs []error
	for _, t := range f.Tokens {
		if t.Problem != "" {
			errs = append(errs, fmt.Errorf("%s: %s", t.Name, t.Problem))
		}
	}
	return errors.Join(errs...)
}

// Get is the value of a name, or "".
func (f Filter) Get(name string) string {
	for _, t := range f.Tokens {
		if t.Name == name && t.Problem == "" {
			return t.Value
		}
	}
	return ""
}

// With is the filter with another value for the name; "" removes it.
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

// Without is the filter without its token i.
func (f Filter) Without(i int) Filter {
	return Filter{Tokens: slices.Delete(slices.Clone(f.Tokens), i, i+1)}.checked()
}

// Query is the filter as a URL has it. Wrong tokens are left out.
func (f Filter) Query() url.Values {
	q := url.Values{}
	for _, t := range f.Tokens {
		if t.Problem == "" {
			q.Add(t.Name, t.Value)
		}
	}
	return q
}

// Text is the filter as a person types it.
func (f Filter) Text() string {
	var all []string
	for _, t := range f.Tokens {
		value := t.Value
		if strings.ContainsFunc(value, unicode.IsSpace) {
			value = `"` + value + `"`
		}
		all = append(all, t.Name+":"+value)
	}
	return strings.Join(all, " ")
}

// State is the word for the states that are asked for.
func (f Filter) State() string {
	if s := f.Get("state"); s != "" {
		return s
	}
	return "dead"
}

// Selection is what the filter selects, by the clock of whoever asks.
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

// Sentence says what the filter selects.
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

// Flags are those of "millrace dead" that select the same, and the IDs behind them.
func (f Filter) Flags() (flags, ids []string) {
	for _, name := range Names {
		switch value := f.Get(name); {
		case name == "event":
			ids = f.Selection(time.Now()).EventIDs
		case value != "":
			flags = append(flags, "--"+name, value)
		}
	}
	if len(flags) == 0 && len(ids) == 0 {
		flags = []string{"--all"}
	}
	return flags, ids
}
