package main

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"runtime/debug"
	"strings"
	"time"

	"github.com/millrace-go/millrace/bench/plot"
)

//go:embed report.html.tmpl
var pageText string

var pageTemplate = template.Must(template.New("report").Parse(pageText))

// page is what report.html.tmpl shows.
type page struct {
	Arguments, When, Verdict string
	Quick                    bool
	Unmet                    []string
	Machine                  [][2]string
	Modules                  []*debug.Module
	Scenarios                []pageScenario
	Attacks                  []pageAttack
}

type pageScenario struct {
	Name, Took, Title, Failure, Unit string
	Facts                            []string
	Ratios, Rates                    template.HTML
	Notes                            [][2]string
}

type pageAttack struct {
	Name, Command, Took, Verdict, Text string
	Timeline                           template.HTML
}

// writePage writes the results as an HTML page with plots. It needs no other file.
func writePage(out io.Writer, all []result, under []attacked, on machine, began time.Time, quick bool) error {
	modules, _ := built()
	p := page{
		Arguments: arguments(quick), When: when(began), Verdict: verdict(all, quick), Quick: quick, Unmet: unmet(all, quick),
		Machine: on.facts(), Modules: modules,
	}
	for i, line := range p.Unmet {
		p.Unmet[i] = strings.ReplaceAll(line, "`", "") // of Markdown
	}
	for _, one := range all {
		s := pageScenario{Name: one.scenario.name, Took: one.took.Round(time.Second).String()}
		if one.err != nil {
			s.Failure = one.err.Error()
		} else {
			s.add(one.report, quick)
		}
		p.Scenarios = append(p.Scenarios, s)
	}
	for _, a := range under {
		p.Attacks = append(p.Attacks, pageAttack{
			Name: a.name, Command: a.command, Took: a.took.Round(time.Second).String(), Verdict: a.verdict(), Text: a.text,
			Timeline: template.HTML(a.image), //nolint:gosec // all texts in it are escaped
		})
	}
	return pageTemplate.Execute(out, p)
}

func (s *pageScenario) add(r *report, quick bool) {
	s.Title, s.Facts, s.Unit = r.title, r.facts, r.unit
	var ratios, rates []plot.Series
	wanted := asked(r.scenario, quick)
	for _, one := range r.ratios {
		t, ok := wanted[one.name]
		if one.unit != "" && !ok {
			continue // milliseconds are no multiple of 1
		}
		series := plot.Series{Name: one.name, Values: one.perRun, Text: strings.TrimSpace(fmt.Sprintf("%.2f %s", median(one.perRun), one.unit))}
		if ok {
			series.Target, series.Met = t.of(quick), t.met(median(one.perRun), quick)
			series.Text += " (" + t.text(quick) + ")"
		}
		ratios = append(ratios, series)
	}
	for _, one := range r.rates {
		rates = append(rates, plot.Series{Name: one.name, Values: one.perRun, Text: thousands(median(one.perRun)) + busyText(one.busy)})
		if one.note != "" {
			s.Notes = append(s.Notes, [2]string{one.name, one.note})
		}
	}
	if len(ratios) > 0 {
		s.Ratios = plot.Ratios(ratios)
	}
	if len(rates) > 0 {
		s.Rates = plot.Rates(rates)
	}
}
