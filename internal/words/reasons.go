package words

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// reasons are short words for why events failed, if neither their state nor their attempts nor their error says it.
var reasons = map[string]string{
	"panic": "panic", "deadline": "timed out", "lost": "lost its connection", "permanent": "permanent error", "window": "too old", "clock": "from the future", "malformed": "no usable ID",
	"killed": "poison message",
}

// Why returns the reason for an event's state, with its last error.
func Why(reason, text string) string {
	if said := reasons[reason]; said != "" && text != "" {
		return said + ": " + text
	}
	return cmp.Or(text, reasons[reason])
}

// DeadReasons say why an event is dead.
var DeadReasons = map[string]string{
	"attempts":  "It failed as often as claim.max_attempts allows.",
	"permanent": "Its handler returned a permanent error.",
	"window":    "It is older than the consumer's retention watermark, so nobody knows whether it was processed.",
	"clock":     "Its ID is from the future: a producer's clock is wrong.",
	"malformed": "It has no usable event ID.",
	"killed":    "It is a poison message: each process that started it alone was killed.",
}

// WhySentence returns the reason for an event's state, if its error does not say it.
func WhySentence(reason string) string { return cmp.Or(DeadReasons[reason], reasons[reason]) }

// HaveFailed formats a number of failed attempts, which must be one or more.
func HaveFailed(attempts int) string {
	return Count(attempts, "attempt") + " failed"
}

// Beginning shortens an error so that it fits into a sentence.
func Beginning(text string) string { return Cut(text, 120) }

// When formats a time for people, relative and absolute.
func When(now, at time.Time) string {
	absolute := " (" + at.UTC().Format(time.RFC3339) + ")"
	switch d := at.Sub(now); {
	case d >= time.Second:
		return "in " + Duration(d) + absolute
	case d > -time.Second:
		return "just now" + absolute
	default:
		return Duration(-d) + " ago" + absolute
	}
}

// CountOf formats a number of things, which may be a lower bound.
func CountOf(c outboxadmin.Count, noun string) string {
	if c.AtLeast {
		return fmt.Sprintf("%d or more %s", c.N, Plural(noun))
	}
	return Count(c.N, noun)
}

// TopicState describes why events of a topic wait, and where they go.
func TopicState(r *outboxadmin.Report, t outboxadmin.TopicReport) (state, why string) {
	if t.State == "" {
		return "", ""
	}
	state = t.State + " for " + Duration(r.Age(t.Since))
	var parts []string
	add := func(is bool, text string) {
		if is {
			parts = append(parts, OneLine(text))
		}
	}
	add(t.To != "", "to "+t.To)
	add(t.By != "", "by "+t.By)
	add(t.Reason != "", t.Reason)
	add(t.State == outboxadmin.TopicSlow, "its batches take long: events wait for their share")
	return state, strings.Join(parts, ", ")
}
