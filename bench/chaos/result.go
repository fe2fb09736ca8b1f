package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// near is how long after a fault something that goes wrong may be its doing.
	near = 10 * time.Second
	// shown is how many findings of a class are printed. The JSON has all.
	shown = 5
)

// Result is what became of a run.
type Result struct {
	Config   Config     `json:"-"`
	Services []string   `json:"services"`
	Kinds    []kind     `json:"-"`
	Began    time.Time  `json:"began"`
	Ended    time.Time  `json:"ended"` // of the faults
	Faults   []happened `json:"faults"`
	Counts   counts     `json:"counts"`
	Findings []finding  `json:"findings"`
	Repeated int        `json:"repeated"` // requests, for want of an answer
	Absorbed int        `json:"absorbed"` // calls of the provider with a key that it knew
	Restarts []restart  `json:"restarts"` // that the schedule does not explain

	arrivals []time.Time // when orders were at the end of their way
}

// Good tells whether nothing was found, by a run without flaws.
func (r *Result) Good() bool { return len(r.Findings) == 0 && len(r.Flaws()) == 0 }

// Flaws are what forbids to call the promises kept although nothing was found: a process ended by itself or did not end
// when it was told to, no fault of a kind could be done, or the auditor has not seen the place of every order.
func (r *Result) Flaws() (flaws []string) {
	for _, e := range r.Restarts {
		if e.Excuse == "" {
			flaws = append(flaws, fmt.Sprintf("%s ended by itself, or badly: %s (%.1f s after the beginning)", e.Process, e.Error, e.At.Sub(r.Began).Seconds()))
		}
	}
	for _, l := range r.table() {
		if l.Failed == l.Faults {
			flaws = append(flaws, fmt.Sprintf("no fault %q was done", l.Kind))
		}
	}
	if c := r.Counts; c.Judged < c.Orders || c.Orders == 0 {
		flaws = append(flaws, fmt.Sprintf("the auditor has seen the place of %d orders, of %d", c.Judged, c.Orders))
	}
	return flaws
}

// excused is how many restarts have the excuse.
func (r *Result) excused(excuse string) (n int) {
	for _, e := range r.Restarts {
		if e.Excuse == excuse {
			n++
		}
	}
	return n
}

// Count is how many findings there are of a class.
func (r *Result) Count(class string) (n int) {
	for _, f := range r.Findings {
		if f.Class == class {
			n++
		}
	}
	return n
}

// Summary is the findings in one line.
func (r *Result) Summary() string {
	parts := make([]string, 0, len(classes))
	for _, class := range classes {
		parts = append(parts, fmt.Sprintf("%s %d", class, r.Count(class)))
	}
	return strings.Join(parts, ", ")
}

// tell adds what is told of a run and decides nothing.
func (s *system) tell(ctx context.Context, r *Result) error {
	_, r.Absorbed = s.provider.log()
	s.driver.mu.Lock()
	r.Repeated = s.driver.repeated
	s.driver.mu.Unlock()
	r.Restarts = s.cast.restarts()
	return s.admin(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `select at from notices order by at`)
		if err != nil {
			return err
		}
		r.arrivals, err = pgx.CollectRows(rows, pgx.RowTo[time.Time])
		return err
	})
}

// line is the table's line for a kind of fault.
type line struct {
	Kind      string        `json:"kind"`
	Faults    int           `json:"faults"`
	Failed    int           `json:"failed"`    // that could not be done as they should have been
	Longest   time.Duration `json:"longest"`   // ns
	Recovered time.Duration `json:"recovered"` // the longest time from a fault's end to the next order at the end of its way, in ns
	Near      int           `json:"near"`      // findings at that time; faults overlap
}

func (r *Result) table() (lines []line) {
	for _, k := range r.Kinds {
		l := line{Kind: k.name}
		for _, h := range r.Faults {
			if h.Kind != k.name {
				continue
			}
			l.Faults++
			if h.Error != "" {
				l.Failed++
			}
			l.Longest = max(l.Longest, h.To.Sub(h.From))
			if i, _ := slices.BinarySearchFunc(r.arrivals, h.To, time.Time.Compare); i < len(r.arrivals) {
				l.Recovered = max(l.Recovered, r.arrivals[i].Sub(h.To))
			}
			for _, f := range r.Findings {
				if f.At.After(h.From.Add(-near)) && f.At.Before(h.To.Add(near)) {
					l.Near++
				}
			}
		}
		lines = append(lines, l)
	}
	return lines
}

// Write prints the tables and the verdict.
func (r *Result) Write(out io.Writer) error {
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "fault\tfaults\tnot done\tlongest\trecovered within\tfindings near")
	total, failed := 0, 0
	for _, l := range r.table() {
		fmt.Fprintf(w, "%s\t%d\t%d\t%.1f s\t%.1f s\t%d\n", l.Kind, l.Faults, l.Failed, l.Longest.Seconds(), l.Recovered.Seconds(), l.Near)
		total, failed = total+l.Faults, failed+l.Failed
	}
	fmt.Fprintf(w, "all\t%d\t%d\t\t\t%d\n", total, failed, len(r.Findings))
	fmt.Fprintf(w, "ended by itself\t%d\n%s\t%d\n%s\t%d\n", r.excused(""), inVain, r.excused(inVain), noClean, r.excused(noClean))
	if err := w.Flush(); err != nil {
		return err
	}
	for _, h := range r.Faults {
		if h.Error != "" {
			fmt.Fprintf(out, "not done as it should: %v: %s\n", h.fault, h.Error)
		}
	}
	for _, text := range r.Flaws() {
		fmt.Fprintln(out, text)
	}
	c := r.Counts
	fmt.Fprintf(out, "\n%s\n%d orders sent, %d answered, %d made, %d shipped, %d told of, %d charged; %d requests repeated, %d charges absorbed by the provider's keys\n",
		strings.Join(r.Services, "; "), c.Sent, c.Answered, c.Orders, c.Shipments, c.Notices, c.Charges, r.Repeated, r.Absorbed)
	said := map[string]int{}
	for _, f := range r.Findings {
		if said[f.Class]++; said[f.Class] <= shown {
			fmt.Fprintf(out, "%s: %s (accepted %.1f s after the beginning)\n", f.Class, f.What, f.At.Sub(r.Began).Seconds())
		}
	}
	_, err := fmt.Fprintf(out, "%s\n", r.Summary())
	return err
}

// WriteJSON writes everything as one line.
func (r *Result) WriteJSON(out io.Writer) error {
	by := map[string]int{}
	for _, class := range classes {
		by[class] = r.Count(class)
	}
	return json.NewEncoder(out).Encode(struct {
		Scenario string         `json:"scenario"`
		Broker   string         `json:"broker"`
		Seed     int64          `json:"seed"`
		Without  string         `json:"without,omitempty"`
		Good     bool           `json:"good"`
		Flaws    []string       `json:"flaws"`
		Found    map[string]int `json:"found"`
		Table    []line         `json:"table"`
		*Result
	}{"chaos", r.Config.Broker, r.Config.Seed, r.Config.Without, r.Good(), r.Flaws(), by, r.table(), r})
}
