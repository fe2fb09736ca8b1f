package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/millrace-go/millrace/bench/plot"
)

// report is what a scenario found. Every number in it was measured in this run.
type report struct {
	scenario string
	title    string   // what was measured, in one line
	facts    []string // what the figures depend on: the server, its settings
	unit     string   // of the rates
	rates    []rates
	ratios   []ratios
}

// rates are the rows per second of one contestant, one for each run.
type rates struct {
	name, note string
	perRun     []float64
	busy       []float64 // the share of the machine's processors that worked in each run, 0 to 1; not every scenario notes it
}

// ratios compare two series run by run, so that what slows the machine for a while slows both. They may also be a
// measure of its own, which then has a unit.
type ratios struct {
	name   string // as in the JSON
	unit   string // of a measure that is no ratio
	perRun []float64
}

// ratio returns own divided by other, run by run.
func ratio(name string, own, other rates) ratios {
	r := ratios{name: name}
	for i := range min(len(own.perRun), len(other.perRun)) {
		r.perRun = append(r.perRun, own.perRun[i]/other.perRun[i])
	}
	return r
}

// against returns the ratios of own to the peer.
func against(own, peer rates) ratios { return ratio("vs_"+peer.name, own, peer) }

func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	return plot.Median(values)
}

func (r *report) write(out io.Writer, asJSON bool) error {
	if asJSON {
		return r.writeJSON(out)
	}
	return r.writeTable(out)
}

// writeJSON writes one line: what a gate reads.
func (r *report) writeJSON(out io.Writer) error {
	line := struct {
		Scenario string             `json:"scenario"`
		Ratios   map[string]float64 `json:"ratios"`
	}{r.scenario, map[string]float64{}}
	for _, one := range r.ratios {
		line.Ratios[one.name] = math.Round(median(one.perRun)*1000) / 1000
	}
	return json.NewEncoder(out).Encode(line)
}

// writeTable writes what people read.
func (r *report) writeTable(out io.Writer) error {
	fmt.Fprintf(out, "\n%s: %s\n", r.scenario, r.title)
	for _, fact := range append(r.facts, versions()) {
		fmt.Fprintf(out, "  %s\n", fact)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	if len(r.rates) > 0 {
		fmt.Fprintf(table, "\n%s\tmedian\tmin\tmax\truns\tbusy\t\n", r.unit)
	}
	for _, one := range r.rates {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%s\t\n", one.name, thousands(median(one.perRun)),
			thousands(slices.Min(one.perRun)), thousands(slices.Max(one.perRun)), len(one.perRun), percent(one.busy))
	}
	fmt.Fprint(table, "\t\t\t\t\t\t\nrun by run\tmedian\tmin\tmax\truns\t\t\n")
	for _, one := range r.ratios {
		fmt.Fprintf(table, "%s\t%.2f\t%.2f\t%.2f\t%d\t%s\t\n", one.name, median(one.perRun),
			slices.Min(one.perRun), slices.Max(one.perRun), len(one.perRun), one.unit)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, one := range r.rates {
		if one.note != "" {
			fmt.Fprintf(out, "  %s: %s\n", one.name, one.note)
		}
	}
	return nil
}

// versions tells what was measured, and on what.
func versions() string {
	parts := []string{fmt.Sprintf("%s %s/%s, %d CPUs", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())}
	modules, revision := built()
	for _, module := range modules {
		parts = append(parts, module.Path+" "+module.Version)
	}
	if revision != "" {
		parts = append(parts, "revision "+revision)
	}
	return strings.Join(parts, ", ")
}

// built tells which peers, and clients of theirs and ours, are in the program, and the revision of Millrace.
func built() (modules []*debug.Module, revision string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil, ""
	}
	for _, module := range info.Deps {
		switch module.Path {
		case "github.com/jackc/pgx/v5", "github.com/ThreeDotsLabs/watermill", "github.com/ThreeDotsLabs/watermill-sql/v4",
			"github.com/oagudo/outbox", "github.com/IBM/sarama", "github.com/ThreeDotsLabs/watermill-kafka/v3", "github.com/twmb/franz-go",
			"github.com/twmb/franz-go/pkg/kfake", "cloud.google.com/go/pubsub/v2", "github.com/ThreeDotsLabs/watermill-googlecloud/v2":
			modules = append(modules, module)
		}
	}
	for _, setting := range info.Settings {
		switch {
		case setting.Key == "vcs.revision":
			revision = setting.Value + revision
		case setting.Key == "vcs.modified" && setting.Value == "true":
			revision += ", modified"
		}
	}
	return modules, revision
}

// thousands writes 1234567 as 1,234,567.
func thousands(value float64) string {
	digits := strconv.FormatInt(int64(math.Round(value)), 10)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}
