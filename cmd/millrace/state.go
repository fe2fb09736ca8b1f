package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace-go/millrace/middleware/deadletter"
)

// states translates what the claim's tables call the states of events into the words that people read, which are those of the
// outbox: this is the one place that knows both.
type states map[string]string

var claimStates = states{"failing": "retrying", "waiting": "retrying", "parked": "blocked", "dead": "dead"}

// words are the order in which states are named.
var words = []string{"dead", "retrying", "blocked"}

// of is the word for a state.
func (s states) of(stored string) string { return s[stored] }

// choice is what a flag accepts for some stored states: their words, and "all".
func (s states) choice(stored []string) (accepted []string) {
	for _, word := range words {
		if slices.ContainsFunc(stored, func(state string) bool { return s[state] == word }) {
			accepted = append(accepted, word)
		}
	}
	return append(accepted, "all")
}

// named are the stored states that a flag's word means, of those that it may mean.
func (s states) named(word string, may ...string) (stored []string, err error) {
	for _, state := range may {
		if word == "all" || word == s[state] {
			stored = append(stored, state)
		}
	}
	if len(stored) == 0 {
		return nil, wrongState(word, s.choice(may))
	}
	return stored, nil
}

// wrongState is for a word that --state does not accept.
func wrongState(word string, accepted []string) error {
	return usageError{fmt.Errorf("--state is %q: want %s", word, either(accepted))}
}

// either joins words by commas, and the last one by "or".
func either(words []string) string {
	last := len(words) - 1
	return strings.TrimPrefix(strings.Join(words[:last], ", ")+" or "+words[last], " or ")
}

// count sums up by words what was counted by stored states, in the order of the words.
func (s states) count(stored map[string]int) (total map[string]int, order []string) {
	total = map[string]int{}
	for _, state := range slices.Sorted(maps.Keys(stored)) {
		total[s[state]] += stored[state]
	}
	for _, word := range words {
		if total[word] > 0 {
			order = append(order, word)
		}
	}
	return total, order
}

// What is printed as JSON has the same words.

func rewordedFailed(found []deadletter.Event) []deadletter.Event {
	reworded := append([]deadletter.Event{}, found...)
	for i := range reworded {
		reworded[i].State = claimStates.of(reworded[i].State)
	}
	return reworded
}

func rewordedResult(r deadletter.Result) deadletter.Result {
	if r.Others != nil {
		r.Others, _ = claimStates.count(r.Others)
	}
	return r
}

// paintState colours the first word of a state.
func (a *app) paintState(text string) string {
	word, _, _ := strings.Cut(strings.TrimSuffix(text, ","), ",")
	switch word, _, _ = strings.Cut(word, " "); word {
	case "dead", "doubt", "conflict", "failing":
		return a.terminal.Red(text)
	case "retrying", "blocked", "pending", "paused", "slow":
		return a.terminal.Yellow(text)
	case "done", "running", "applied":
		return a.terminal.Green(text)
	}
	return a.terminal.Dim(text)
}
