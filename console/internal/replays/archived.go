package replays

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/millrace/console/internal/format"
	"github.com/millrace-go/millrace/console/internal/mask"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// Archived is a replay of archived events, as pages show it.
type Archived struct {
	outboxadmin.ReplayStatus
	Replayed, Total int64
	Figures         []Figure      // their sum is Total
	Pacing          string        // in words
	Here            bool          // this console continues it
	Waits           bool          // it may wait for relays to send the events in the outbox
	Of              []mask.Header // its selection
}

// Name returns the replay's name in lists.
func (r Archived) Name() string { return fmt.Sprintf("Replay %d of the archive", r.ID) }

// Link returns the path of the replay's page, below the database's base.
func (r Archived) Link() string { return ArchivePage(r.ID) }

// OutOf returns how many events the replay has, as far as that is known.
func (r Archived) OutOf() string {
	return format.AtLeast(outboxadmin.Count{N: r.Total, AtLeast: r.Selected.AtLeast})
}

// Warn adds to a warning that these replays are running.
func Warn(warning string, beside ...string) string {
	for _, name := range beside {
		warning = strings.TrimSpace(warning + " " + name + " is running and may also replay some of these events.")
	}
	return warning
}

// Newest returns the name of the replay that was begun last.
func Newest(all []outboxadmin.ReplayStatus) string {
	last := Archived{}
	for _, r := range all {
		if r.ID > last.ID {
			last.ReplayStatus = r
		}
	}
	return last.Name() // that of no replay if there is none
}

// BesideArchived returns the names of those running replays that may take selected events of the archive.
func BesideArchived(running []Archived, selected outboxadmin.ArchiveSelection) (names []string) {
	for _, r := range running {
		s := r.Selection
		if (s.Topic == "" || selected.Topic == "" || s.Topic == selected.Topic) && (s.Key == "" || selected.Key == "" || s.Key == selected.Key) &&
			(s.Until.IsZero() || selected.Since.Before(s.Until)) && (selected.Until.IsZero() || s.Since.Before(selected.Until)) {
			names = append(names, r.Name())
		}
	}
	return names
}

// ArchivePage returns the path of the page of an archive's replay, below the database's base.
func ArchivePage(id int64) string {
	return "/outbox/archive/replay?id=" + strconv.FormatInt(id, 10)
}

// ViewArchived prepares a replay of archived events for a page. here means that this console continues it; outbox is the current
// report.
func ViewArchived(r outboxadmin.ReplayStatus, here bool, outbox *outboxadmin.Report) Archived {
	v := Archived{ReplayStatus: r, Replayed: r.Events, Total: max(r.Selected.N, r.Events), Here: here}
	done := int(barLength * v.Replayed / max(v.Total, 1))
	v.Figures = []Figure{
		{N: int(v.Replayed), Word: "put into the outbox", Shape: "done", Width: done},
		{N: int(v.Total - v.Replayed), Word: "to come", Shape: "pending", X: done, Width: barLength - done},
	}
	v.Pacing = "as fast as relays send them"
	if r.Rate > 0 {
		v.Pacing = "at most " + format.Number(r.Rate) + " per second"
		if left := v.Total - v.Replayed; left > 0 {
			v.Pacing += ", " + words.Duration(time.Duration(left/int64(r.Rate)+1)*time.Second) + " left or more"
		}
	}
	if outbox != nil {
		v.Waits = r.State == outboxadmin.ReplayRunning && outbox.Pending.AtLeast
	}
	for _, h := range [][2]string{{"topic", r.Selection.Topic}, {"key", r.Selection.Key}, {"since", moment(r.Selection.Since)}, {"until", moment(r.Selection.Until)}, {"to", r.To}} {
		if h[1] != "" {
			v.Of = append(v.Of, mask.Header{Name: h[0], Value: h[1]})
		}
	}
	return v
}

// ArchivePace returns the default pace of a form. It has no limit of failures, which is for dead letters only.
func ArchivePace(f url.Values, rate int) Pace {
	p := PaceOf(url.Values{"rate": {f.Get("rate")}}, Usual)
	if !f.Has("rate") && rate > 0 {
		p = PaceOf(url.Values{"rate": {strconv.Itoa(rate)}}, Usual)
	}
	p.Unguarded = true
	return p
}
