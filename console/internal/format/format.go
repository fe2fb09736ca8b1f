package console

import (
	"fmt"
	"html/template"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// functions are those of the templates.
var functions = template.FuncMap{
	"number": func(n any) string {
		switch n := n.(type) {
		case int:
			return number(n)
		case int64:
			return number(n)
		}
		return fmt.Sprint(n)
	},
	"count":   count,
	"atLeast": atLeast,
	"age":     func(now, at time.Time) template.HTML { return counted("since", at, now.Sub(at)) },
	"until":   func(now, at time.Time) template.HTML { return counted("until", at, at.Sub(now)) },
	"ageOf": func(now time.Time, at *time.Time) template.HTML {
		if at == nil {
			return "–"
		}
		return counted("since", *at, now.Sub(*at))
	},
	"clock": func(now, at time.Time) string {
		if at.UTC().Format(time.DateOnly) == now.UTC().Format(time.DateOnly) {
			return at.UTC().Format(time.TimeOnly)
		}
		return at.UTC().Format("Jan 2, 15:04")
	},
	"utc":      func(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) },
	"line":     words.OneLine,
	"begin":    words.Beginning,
	"why":      words.Why,
	"sentence": words.WhySentence,
	"word":     words.ClaimStates.Of,
	"first":    func(n int, text string) string { return words.Cut(text, n) },
	"short":    func(id string) string { return words.Abbreviate([]string{id})[0] },
	"cause":    causeText,
	"plural":   plural[int],
	"remedy": func(text string) string { // a sentence, or a command, which stays as it is
		if strings.HasPrefix(text, "millrace ") || text == "" {
			return text
		}
		return strings.ToUpper(text[:1]) + text[1:]
	},
	"q": func(pairs ...string) template.URL {
		q := url.Values{}
		for i := 0; i+1 < len(pairs); i += 2 {
			if pairs[i+1] != "" {
				q.Set(pairs[i], pairs[i+1])
			}
		}
		return template.URL(q.Encode()) // it is encoded
	},
	"shape": shape,
	"stateOfEffects": func(state string) string {
		if state == "open" {
			return "in doubt or in conflict"
		}
		return words.EffectState(state)
	},
	"effectWord": func(e effect.Entry) string {
		if e.Conflicts > 0 {
			return words.EffectState("conflict")
		}
		return words.EffectState(e.State)
	},
	"replayWord": func(state string) string { return strings.Replace(state, deadletter.ReplayRunning, "replaying", 1) },
	"percent":    func(share float64) string { return strconv.FormatFloat(share*100, 'f', -1, 64) + " %" },
	"topicWhy": func(r *outboxadmin.Report, t outboxadmin.TopicReport) string {
		_, why := words.TopicState(r, t)
		return why
	},
}

// number is a number with commas.
func number[N int | int64](n N) string {
	text := strconv.FormatInt(int64(n), 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// count is a number of events, which may not have been counted to the end.
func count(c outboxadmin.Count) string {
	if c.AtLeast {
		return number(c.N) + "+"
	}
	return number(c.N)
}

// counted is a duration since or until a time, which the page counts on: console.js writes durations as age does.
func counted(from string, at time.Time, d time.Duration) template.HTML {
	utc := at.UTC().Format(time.RFC3339Nano)
	return template.HTML(`<time datetime="` + utc + `" title="` + utc + `" data-` + from + `>` + template.HTMLEscapeString(age(d)) + `</time>`)
}

// age is a duration for people.
func age(d time.Duration) string {
	if d < 0 {
		d = 0
	}
	if d < 10*time.Second {
		return fmt.Sprintf("%.1f s", d.Truncate(100*time.Millisecond).Seconds())
	}
	return words.Duration(d)
}

// plural is a number with the word for it.
func plural[N int | int64](n N, one, many string) string {
	return number(n) + " " + words.Pick(n, one, many)
}

// causeText is what errors of a group have in common, in words.
func causeText(text string) string {
	reason, rest, _ := strings.Cut(text, ": ")
	return words.Why(reason, rest)
}

// shape is the class of a state's pill, which gives it its colour and its icon.
func shape(state string) string {
	word, _, _ := strings.Cut(strings.TrimPrefix(state, "in "), " ")
	word = strings.TrimSuffix(word, ",")
	switch word {
	case "dead", "discarded", "blocked", "retrying", "pending", "paused", "done":
		return word
	case "doubt", "conflict", "suspect", "unknown":
		return "doubt"
	case "failing", "slow":
		return "open"
	case "running", "replaying", "flight":
		return "run"
	case "completed", "archived", "received", "executed":
		return "done"
	case "delayed", "will":
		return "pending"
	case "redirected", "stopped":
		return "paused"
	case "rejected":
		return "discarded"
	}
	return "none"
}
