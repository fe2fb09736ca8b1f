package words

import (
	"maps"
	"slices"
	"strings"
)

// States maps stored states to the words that people read. Several states may have one word.
type States map[string]string

// ClaimStates are the states of events at consumers. An event is "retrying" whether the broker redelivers it or Millrace does.
var ClaimStates = States{"nacked": "retrying", "retrying": "retrying", "blocked": "blocked", "dead": "dead"}

// EffectState returns the word for an effect's state.
func EffectState(stored string) string {
	switch stored {
	case "doubt", "conflict":
		return "in " + stored
	}
	return strings.ReplaceAll(stored, "_", " ")
}

// order is the order in which states are listed.
var order = []string{"dead", "retrying", "blocked"}

// Of returns the word for a state.
func (s States) Of(stored string) string { return s[stored] }

// Choice returns what a flag accepts for some stored states: their words, and "all".
func (s States) Choice(stored []string) (accepted []string) {
	for _, word := range order {
		if slices.ContainsFunc(stored, func(state string) bool { return s[state] == word }) {
			accepted = append(accepted, word)
		}
	}
	return append(accepted, "all")
}

// Named returns the stored states that a word means, among may. It returns none if Choice does not include the word.
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

// Count sums counts of stored states by word, in the order of the words.
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
