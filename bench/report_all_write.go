package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// writeReport writes the results as Markdown.
func writeReport(out io.Writer, all []result, under []attacked, on machine, began time.Time, quick bool) {
	fmt.Fprintf(out, "# What was measured\n\nWritten by `cd bench && go run . report%s` on %s; not edited by hand. What is measured, and how, stands in\n"+
		"[README.md](README.md). Figures are medians of the ratios of single runs; machines differ, ratios less so.\n\n",
		arguments(quick), when(began))
	if quick {
		fmt.Fprint(out, "**This is a quick run, of small sizes: claim nothing from it.**\n\n")
	}
	fmt.Fprintf(out, "**%s.**\n\n", verdict(all, quick))
	for _, line := range unmet(all, quick) {
		fmt.Fprintf(out, "- %s\n", line)
	}
	for _, a := range under {
		fmt.Fprintf(out, "- %s\n", cell(a.verdict()))
	}
	fmt.Fprint(out, "\n## The machine\n\n| | |\n|---|---|\n")
	for _, fact := range on.facts() {
		fmt.Fprintf(out, "| %s | %s |\n", fact[0], fact[1])
	}
	modules, _ := built()
	fmt.Fprint(out, "\nThe servers stand with each scenario.\n\n## Peers and clients\n\n| module | version |\n|---|---|\n")
	for _, module := range modules {
		fmt.Fprintf(out, "| %s | %s |\n", module.Path, module.Version)
	}
	for _, one := range all {
		fmt.Fprintf(out, "\n## %s\n\n`go run . %s%s`, %v\n\n", one.scenario.name, one.scenario.name, arguments(quick), one.took.Round(time.Second))
		if one.err != nil {
			fmt.Fprintf(out, "**Failed, so there are no figures**: %s\n", firstLine(one.err))
			continue
		}
		one.report.writeMarkdown(out, quick)
	}
	for _, a := range under {
		a.writeMarkdown(out, quick)
	}
	fmt.Fprint(out, "\n## Beside River\n\nWhat a harness that is not ours measured of Millrace and River: [queuebench/RESULTS.md](queuebench/RESULTS.md).\n")
}

func arguments(quick bool) string {
	if quick {
		return " -quick"
	}
	return ""
}

func when(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

func (r *report) writeMarkdown(out io.Writer, quick bool) {
	fmt.Fprintf(out, "%s\n\n", r.title)
	for _, fact := range r.facts {
		fmt.Fprintf(out, "- %s\n", fact)
	}
	fmt.Fprint(out, "\n| run by run | median | min | max | runs | | target | |\n|---|---:|---:|---:|---:|---|---|---|\n")
	for _, one := range r.ratios {
		want, verdict := "", ""
		if t, ok := asked(r.scenario, quick)[one.name]; ok {
			want, verdict = t.text(quick), "**missed**"
			if t.met(median(one.perRun), quick) {
				verdict = "met"
			}
		}
		fmt.Fprintf(out, "| `%s` | %.2f | %.2f | %.2f | %d | %s | %s | %s |\n", one.name, median(one.perRun),
			slices.Min(one.perRun), slices.Max(one.perRun), len(one.perRun), cell(one.unit), want, verdict)
	}
	if len(r.rates) == 0 {
		return
	}
	fmt.Fprintf(out, "\n| %s | median | min | max | runs | busy | |\n|---|---:|---:|---:|---:|---:|---|\n", cell(r.unit))
	for _, one := range r.rates {
		fmt.Fprintf(out, "| %s | %s | %s | %s | %d | %s | %s |\n", cell(one.name), thousands(median(one.perRun)),
			thousands(slices.Min(one.perRun)), thousands(slices.Max(one.perRun)), len(one.perRun), percent(one.busy), cell(one.note))
	}
}

// cell is text that a table can hold.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(strings.TrimSpace(text))
}

// firstLine returns the first line of an error, which may quote a page of HTML, as Markdown.
func firstLine(err error) string {
	line, _, _ := strings.Cut(strings.TrimSpace(err.Error()), "\n")
	return cell(strings.ReplaceAll(line, "<", "&lt;"))
}

// unmet lists targets that were missed, or not measured.
func unmet(all []result, quick bool) (lines []string) {
	for _, one := range all {
		name := one.scenario.name
		if one.err != nil {
			lines = append(lines, name+" failed")
			continue
		}
		measured := map[string]float64{}
		for _, r := range one.report.ratios {
			measured[r.name] = median(r.perRun)
		}
		wanted := asked(name, quick)
		for _, ratio := range slices.Sorted(maps.Keys(wanted)) {
			t := wanted[ratio]
			switch value, ok := measured[ratio]; {
			case !ok:
				lines = append(lines, fmt.Sprintf("%s `%s` was not measured", name, ratio))
			case !t.met(value, quick):
				lines = append(lines, fmt.Sprintf("%s `%s` is %.2f, asked is %s", name, ratio, value, t.text(quick)))
			}
		}
	}
	return lines
}

// verdict counts the targets of the scenarios.
func verdict(all []result, quick bool) string {
	met, of := 0, 0
	for _, one := range all {
		wanted := asked(one.scenario.name, quick)
		of += len(wanted)
		if one.err != nil {
			continue
		}
		for _, r := range one.report.ratios {
			if t, ok := wanted[r.name]; ok && t.met(median(r.perRun), quick) {
				met++
			}
		}
	}
	return fmt.Sprintf("%d of %d targets met", met, of)
}
