// Package format formats numbers, times and states for people. Templates use its functions.
package format

import (
	"cmp"
	"context"
	"errors"
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

// Functions are the functions of the templates.
var Functions = template.FuncMap{
	"number": func(n any) string {
		switch n := n.(type) {
		case int:
			return Number(n)
		case int64:
			return Number(n)
		}
		return fmt.Sprint(n)
	},
	"count":   Count,
	"atLeast": AtLeast,
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
	"cause":    Cause,
	"plural":   Plural[int],
	"remedy": func(text string) string { // capitalizes a sentence; a command stays as it is
		if strings.HasPrefix(text, "millrace ") {
			return text
		}
		return words.Sentence(text)
	},
	"q": func(pairs ...string) template.URL {
		q := url.Values{}
		for i := 0; i+1 < len(pairs); i += 2 {
			if pairs[i+1] != "" {
				q.Set(pairs[i], pairs[i+1])
			}
		}
		return template.URL(q.Encode()) // Encode has escaped it
	},
	"shape": Shape,
	"took":  Took,
	"broker": func(kind string) string {
		return cmp.Or(map[string]string{"kafka": "Kafka", "pubsub": "Pub/Sub"}[kind], kind)
	},
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

// Number formats a number with commas.
func Number[N int | int64](n N) string {
	text := strconv.FormatInt(int64(n), 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// Count formats a number of events, with "+" if counting stopped early.
func Count(c outboxadmin.Count) string {
	if c.AtLeast {
		return Number(c.N) + "+"
	}
	return Number(c.N)
}

// AtLeast formats a number of events, with "more than" if counting stopped early.
func AtLeast(c outboxadmin.Count) string {
	if c.AtLeast {
		return "more than " + Number(c.N)
	}
	return Number(c.N)
}

// counted formats a duration since or until a time, which console.js keeps up to date. console.js formats durations as Age does.
func counted(from string, at time.Time, d time.Duration) template.HTML {
	utc := at.UTC().Format(time.RFC3339Nano)
	return template.HTML(`<time datetime="` + utc + `" title="` + utc + `" data-` + from + `>` + template.HTMLEscapeString(Age(d)) + `</time>`)
}

// Age formats a duration.
func Age(d time.Duration) string {
	if d < 0 {
		d = 0
	}
	if d < 10*time.Second {
		return fmt.Sprintf("%.1f s", d.Truncate(100*time.Millisecond).Seconds())
	}
	return words.Duration(d)
}

// Took formats a duration of something that has ended.
func Took(d time.Duration) string {
	if d < time.Second {
		return strconv.FormatInt(max(d.Milliseconds(), 1), 10) + " ms"
	}
	return Age(d)
}

// Plural formats a number with the word for it.
func Plural[N int | int64](n N, one, many string) string {
	return Number(n) + " " + words.Pick(n, one, many)
}

// Cause describes the common error of a group.
func Cause(text string) string {
	reason, rest, _ := strings.Cut(text, ": ")
	return words.Why(reason, rest)
}

// Shape returns the CSS class for a state, which determines colour and icon.
func Shape(state string) string {
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
	case "failed":
		return "retrying"
	case "redirected", "stopped":
		return "paused"
	case "rejected":
		return "discarded"
	}
	return "none"
}

// Error describes an error for an operator.
func Error(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "The database did not answer in time. It may be busy; narrow the filter, or try again."
	}
	return err.Error()
}

// Waiting says how many events of a topic wait.
func Waiting(n outboxadmin.Count) string {
	if !n.Known() {
		return "how many wait now is not known."
	}
	return Count(n) + words.Pick(n.N, " waits now.", " wait now.")
}

// Events is a number of events for a button.
func Events(n outboxadmin.Count) string {
	if n.AtLeast {
		return Count(n) + " events"
	}
	return Count(n) + " " + words.Pick(n.N, "event", "events")
}
