package cli

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/millrace/cmd/millrace/internal/output"
	"github.com/millrace-go/millrace/internal/words"
)

// PrintJSON prints v as JSON, for scripts.
func (a *App) PrintJSON(v any) error {
	if a.gathered != nil {
		return a.gathered.json(a.Name, v)
	}
	e := json.NewEncoder(a.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// Table prints rows of cells: see output.Columns. It colours the words in columns named STATE.
func (a *App) Table(columns string, rows [][]string) {
	if a.gathered != nil {
		a.gathered.table(a.Name, columns, rows)
		return
	}
	all := output.Columns(columns)
	for i := range all {
		if all[i].Head == "STATE" {
			all[i].Paint = a.PaintState
		}
	}
	a.Terminal.Table(a.Stdout, all, rows)
}

// Say prints a line for people.
func (a *App) Say(format string, args ...any) {
	fmt.Fprintf(a.Stdout, format+"\n", args...)
}

// SayNone says that a list is empty. why is the text if no flag selects; otherwise the text names the flags, and the command that
// lists all.
func (a *App) SayNone(why, command string, flags [][2]string) {
	if given := GivenFlags(flags); given != "" {
		why = fmt.Sprintf("No event matches %s. To list all, run: %s", given, command)
	}
	if a.gathered != nil {
		a.gathered.nothing = why
		return
	}
	a.Say("%s", why)
}

// Due formats the time of the next attempt, for a table.
func Due(at time.Time) string {
	if d := time.Until(at); d > 0 {
		return "in " + words.Duration(d)
	}
	return "due"
}

// Tries formats a number of attempts, for a table.
func Tries(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// PaintState colours the first word of a state.
func (a *App) PaintState(text string) string {
	word, _, _ := strings.Cut(strings.TrimSuffix(text, ","), ",")
	switch word, _, _ = strings.Cut(word, " "); word {
	case "dead", "doubt", "conflict", "failing":
		return a.Terminal.Red(text)
	case "retrying", "blocked", "pending", "paused", "slow":
		return a.Terminal.Yellow(text)
	case "done", "running", "applied":
		return a.Terminal.Green(text)
	}
	return a.Terminal.Dim(text)
}

// AuditTime formats the time of an operator's action, for a table.
func (a *App) AuditTime(at time.Time) string {
	if a.Terminal.Is() {
		return words.Duration(time.Since(at)) + " ago"
	}
	return at.Format(time.RFC3339)
}
