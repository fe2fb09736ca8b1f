package words

import (
	"maps"
	"slices"
	"strings"
)

// States are the words that people read for stored states, where several may be one to them.
type States map[string]string

// ClaimStates are those of events at consumers. Whether the broker redelivers an event or Millrace does, it is being retried.
var ClaimStates = States{"nacked": "retrying", "retrying": "retrying", "blocked": "blocked", "dead": "dead"}

// EffectState is the word for an effect's state.
func EffectState(stored string) string {
	switch stored {
	case "doubt", "conflict":
		return "in " + stored
	}
	return strings.ReplaceAll(stored, "_", " ")
}

// order is how states are named one after the other.
var order = []string{"dead", "retrying", "blocked"}

// Of is the word for a state.
func (s States) Of(stored string) string { return s[stored] }

// Choice is what a flag accepts for some stored states: their words, and "all".
func (s States) Choice(stored []string) (accepted []string) {
	for _, word := range order {
		if slices.ContainsFunc(stored, func(state string) bool { return s[state] == word }) {
			accepted = append(accepted, word)
		}
	}
	return append(accepted, "all")
}

// Named are the stored states that a word means, of those that it may mean: none if it is none of Choice's.
func (s States) Named(word string, may ...string) (stored []string) {
	for _, state := range may {
		if word == "all" || word == s[state] {
			stored = append(stored, state)
		}
	}
	return stored
}

// Either joins words by commas, and the last one by "or".
func Either(alternatives []string) string {
	last := len(alternatives) - 1
	return strings.TrimPrefix(strings.Join(alternatives[:last], ", ")+" or "+alternatives[last], " or ")
}

// Count sums up by words what was counted by stored states, in the order of the words.
func (s States) Count(stored map[string]int) (total map[string]int, named []string) {
	total = map[string]int{}
	for _, state := range slices.Sorted(maps.Keys(stored)) {
		total[s[state]] += stored[state]
	}
	for _, word := range order {
		if total[word] > 0 {
			named = append(named, word)
		}
	}
	return total, named
}
