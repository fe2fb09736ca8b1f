// Package replays prepares replays of dead letters and of archived events for pages, and reads the pace in forms.
package replays

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/console/internal/mask"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

// Replay is a replay of dead letters, as pages show it.
type Replay struct {
	deadletter.ReplayStatus
	Total   int
	Figures []Figure      // results of its events; their sum is Total
	Pacing  string        // in words
	Here    bool          // this console continues it
	Waits   bool          // it waits for consumers to try the replayed events
	Of      []mask.Header // its selection
}

// Figure is a number of events, with its segment of a bar of length barLength.
type Figure struct {
	N           int
	AtLeast     bool // N is a lower bound
	Word, Shape string
	X, Width    int
}

// Name returns the replay's name in lists.
func (v Replay) Name() string { return fmt.Sprintf("Replay %d", v.ID) }

// Link returns the path of the replay's page, below the database's base.
func (v Replay) Link() string { return Page(v.ID) }

// OutOf returns how many events the replay has.
func (v Replay) OutOf() string { return format.Number(v.Total) }

const (
	barLength = 1000
	maxRate   = 1_000_000 // events a second
)

// View prepares a replay for a page. here means that this console continues it.
func View(r deadletter.ReplayStatus, here bool) Replay {
	v := Replay{ReplayStatus: r, Total: max(r.Selected, r.Replayed+r.InFlight), Here: here}
	left, toCome := r.InFlight+r.Superseded, v.Total-r.Replayed-r.InFlight
	if r.State == deadletter.ReplayDone { // events that no longer matched were not replayed either
		left, toCome = left+toCome, 0
	}
	v.Figures = []Figure{
		{N: r.Handled, Word: "handled", Shape: "done"},
		{N: r.Retrying, Word: "retrying", Shape: "retrying"},
		{N: r.Dead, Word: "dead again", Shape: "dead"},
		{N: r.Untried, Word: "not tried yet", Shape: "run"},
		{N: left, Word: "left out", Shape: "discarded"},
		{N: toCome, Word: "to come", Shape: "pending"},
	}
	if r.AtLeast {
		v.Figures[0].Word, v.Figures[0].Shape = "handled or not counted", "pending"
		for i := range v.Figures[1:4] {
			v.Figures[i+1].AtLeast = true
		}
	}
	sum := 0
	for i := range v.Figures {
		f := &v.Figures[i]
		f.X = barLength * sum / max(v.Total, 1)
		sum += f.N
		f.Width = barLength*sum/max(v.Total, 1) - f.X
	}
	v.Pacing = "as fast as consumers handle them"
	if r.Pace.Rate > 0 {
		v.Pacing = "at most " + format.Number(r.Pace.Rate) + " per second"
		if r.State == deadletter.ReplayRunning && toCome > 0 {
			v.Pacing += ", " + words.Duration(time.Duration(toCome/r.Pace.Rate+1)*time.Second) + " left or more"
		}
	}
	v.Reason = strings.TrimPrefix(r.Reason, "stopped ") // the state says that already
	v.Waits = r.State == deadletter.ReplayRunning && r.Pace.MaxFailed < 1 && toCome > 0 && r.Untried >= min(max(r.Replayed-r.Untried, 20), 10_000)
	s := r.Selection
	for _, h := range [][2]string{
		{"state", strings.Join(StateWords(s.States), ", ")},
		{"consumer", s.Consumer},
		{"topic", s.Topic},
		{"key", s.Key},
		{"cause", s.Group},
		{"reason", s.Reason},
		{"since", moment(s.Since)},
		{"until", moment(s.Until)},
		{"events", words.Cut(strings.Join(s.EventIDs, ", "), 300)},
	} {
		if h[1] != "" {
			v.Of = append(v.Of, mask.Header{Name: h[0], Value: h[1]})
		}
	}
	return v
}

// Beside returns the names of those running replays that may take selected events.
func Beside(running []Replay, selected deadletter.Selection) (names []string) {
	for _, r := range running {
		if overlap(r.Selection, selected) {
			names = append(names, r.Name())
		}
	}
	return names
}

// overlap reports whether both selections may select an event.
func overlap(a, b deadletter.Selection) bool {
	for _, f := range [][2]string{{a.Consumer, b.Consumer}, {a.Topic, b.Topic}, {a.Key, b.Key}, {a.Group, b.Group}, {a.Reason, b.Reason}} {
		if f[0] != "" && f[1] != "" && f[0] != f[1] {
			return false
		}
	}
	return len(a.EventIDs) == 0 || len(b.EventIDs) == 0 || slices.ContainsFunc(a.EventIDs, func(id string) bool { return slices.Contains(b.EventIDs, id) })
}

// StateWords returns the words for states of failed events.
func StateWords(states []string) (all []string) {
	for _, s := range states {
		all = append(all, words.ClaimStates.Of(s))
	}
	return all
}

func moment(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}

// Page returns the path of the page of a replay of dead letters, below the database's base.
func Page(id int64) string { return "/replay?id=" + strconv.FormatInt(id, 10) }

// HasPace reports whether a form has a pace: events per second, and the percentage that may fail again.
func HasPace(f url.Values) bool { return f.Has("rate") || f.Has("failed") }

// Usual is the default pace of forms.
var Usual = deadletter.Pace{Rate: 50, MaxFailed: 0.05}

// Pace is the pace of a replay, as a form has it.
type Pace struct {
	Rate, Failed string // events per second, and the percentage of events that may fail again; "" for no limit
	Unguarded    bool   // there is no limit of failures
	Wrong        string
	deadletter.Pace
}

// PaceOf reads the pace in a form. If the form has none, it returns otherwise.
func PaceOf(f url.Values, otherwise deadletter.Pace) (p Pace) {
	if !HasPace(f) {
		p = Pace{Failed: strconv.FormatFloat(otherwise.MaxFailed*100, 'f', -1, 64), Pace: otherwise}
		if otherwise.Rate > 0 {
			p.Rate = strconv.Itoa(otherwise.Rate)
		}
		return p
	}
	p = Pace{Rate: strings.TrimSpace(f.Get("rate")), Failed: strings.TrimSpace(f.Get("failed")), Pace: deadletter.Pace{MaxFailed: 1}}
	var err error
	if p.Rate != "" {
		if p.Pace.Rate, err = strconv.Atoi(p.Rate); err != nil || p.Pace.Rate < 1 || p.Pace.Rate > maxRate {
			p.Wrong = fmt.Sprintf("The number of events per second is %q: want 1 to %d, or nothing for no limit.", p.Rate, maxRate)
		}
	}
	if p.Failed != "" {
		percent, err := strconv.ParseFloat(p.Failed, 64)
		if err != nil || !(percent >= 0 && percent <= 100) {
			p.Wrong = fmt.Sprintf("The percentage that may fail again is %q: want 0 to 100, or nothing for no limit.", p.Failed)
		}
		p.MaxFailed = percent / 100
	}
	return p
}

// Flags returns the flags of the equivalent command.
func (p Pace) Flags() (flags []string) {
	for _, flag := range [][2]string{{"--rate", p.Rate}, {"--max-failed", p.Failed}} {
		if flag[1] != "" {
			flags = append(flags, flag[0], flag[1])
		}
	}
	return flags
}
