package millracetest

import (
	"fmt"
	"slices"
	"strings"
)

// kind is a kind of fault.
type kind int

const (
	nothing kind = iota
	diesBefore
	diesAfter
	diesBeforeAck
	losesBefore
	losesAfter
	fails
	refuses
	answerLost
	twice
	overtaken
	suspended
	repaired // no fault: a process that starts after one
)

// fault is one fault, at one statement or call of a provider.
type fault struct {
	kind            kind
	statement, call int // number, from 1; 0: none
	text            string
}

// faults returns all points of attack for a handler with these statements and calls of providers.
func faults(trace []statement, calls []call) (all []fault) {
	at := func(k kind, s statement, format string) {
		text := fmt.Sprintf("statement %d of %d (%s)", s.n, len(trace), abridged(s))
		all = append(all, fault{kind: k, statement: s.n, text: fmt.Sprintf(format, text)})
	}
	// Skip what the claim does before its transaction: it changes nothing that the handler could notice.
	before := slices.IndexFunc(trace, func(s statement) bool { return s.word() == "begin" })
	points := trace[max(before, 0):]
	// Statements that travel together need only one fault before the first and one after the last: a fault between them has no other
	// effect, except at the commit. The ledger's transactions have an effect only at their commits.
	starts := func(s statement) bool { return s.first && !s.ledger || s.word() == "commit" }
	ends := func(s statement) bool { return s.last && !s.ledger || s.word() == "commit" }
	for _, s := range points {
		if starts(s) {
			at(diesBefore, s, "the process dies before %s")
		}
		if ends(s) {
			at(diesAfter, s, "the process dies after %s, before it hears of its result")
		}
	}
	all = append(all, fault{kind: diesBeforeAck, text: "the process dies after the commit, before the ack"})
	for _, s := range points {
		if starts(s) {
			at(losesBefore, s, "the connection is lost before %s")
		}
		if ends(s) {
			at(losesAfter, s, "the connection is lost after %s, with its result")
		}
	}
	for _, s := range points {
		if s.line != "" && !s.ledger && !s.controls() {
			at(fails, s, "PostgreSQL refuses %s")
		}
	}
	for i, c := range calls {
		all = append(all,
			fault{kind: refuses, call: i + 1, text: fmt.Sprintf("the provider refuses call %d of %d (%s)", i+1, len(calls), short(c.what))},
			fault{kind: answerLost, call: i + 1, text: fmt.Sprintf("the answer to call %d of %d is lost (%s)", i+1, len(calls), short(c.what))})
	}
	all = append(all, fault{kind: twice, text: "the event is delivered twice"})
	for _, s := range points {
		if starts(s) {
			at(overtaken, s, "the event is delivered to a second process while the first one is before %s")
		}
	}
	for _, s := range points {
		if starts(s) {
			at(suspended, s, "the process is suspended before %s, loses its connections, and goes on after another one has handled the event")
		}
	}
	return all
}

func abridged(s statement) string {
	text := short(s.sql)
	if s.line != "" {
		text = s.line + ": " + text
	}
	return text
}

// short returns the beginning of a text, on one line.
func short(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--") {
			lines = append(lines, line)
		}
	}
	text = strings.Join(lines, " ")
	if runes := []rune(text); len(runes) > 70 {
		text = string(runes[:69]) + "…"
	}
	return text
}
