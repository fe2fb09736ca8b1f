package main

import (
	"fmt"
	"strings"

	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

// namedStates are the stored states that the flag --state means, of those that it may mean.
func namedStates(word string, may ...string) ([]string, error) {
	stored := words.ClaimStates.Named(word, may...)
	if len(stored) == 0 {
		return nil, wrongState(word, words.ClaimStates.Choice(may))
	}
	return stored, nil
}

// wrongState is for a word that --state does not accept.
func wrongState(word string, accepted []string) error {
	return usageError{fmt.Errorf("--state is %q: want %s", word, words.Either(accepted))}
}

// What is printed as JSON has the same words.

func rewordedFailed(found []deadletter.Event) []deadletter.Event {
	reworded := append([]deadletter.Event{}, found...)
	for i := range reworded {
		reworded[i].State = words.ClaimStates.Of(reworded[i].State)
	}
	return reworded
}

func rewordedResult(r deadletter.Result) deadletter.Result {
	if r.Others != nil {
		r.Others, _ = words.ClaimStates.Count(r.Others)
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
