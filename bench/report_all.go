package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// reportCommand runs every scenario and writes what came of them, unfavourable figures and failures too.
const reportCommand = "report"

// result is what came of a scenario: a report or an error.
type result struct {
	scenario scenario
	report   *report
	err      error
	took     time.Duration
}

// draft is a file that takes its name when it is complete.
type draft struct {
	*os.File
	name string
}

func newDraft(name string) (draft, error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".report-*")
	return draft{f, name}, err
}

func (d draft) keep() error {
	return errors.Join(d.Chmod(0o644), d.Sync(), os.Rename(d.Name(), d.name))
}

func (d draft) discard() {
	d.Close()
	_ = os.Remove(d.Name()) // not there any more when it was kept
}

// reportAll runs the scenarios and the attacks in turn and writes REPORT.md, and REPORT.html with plots, at the end. A scenario that fails is reported as such, and the
// exit code tells of it; an interrupted run writes nothing. What was measured goes to stderr at once too, so that nothing
// is lost to what happens hours later.
func (c command) reportAll(ctx context.Context, args []string) int {
	flags := flag.NewFlagSet(reportCommand, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	quick := flags.Bool("quick", false, "")
	out := flags.String("out", "REPORT.md", "")
	err := flags.Parse(args)
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		c.usage(c.stdout)
		return exitOK
	case err != nil:
		fmt.Fprintf(c.stderr, "bench %s: %v\n\n", reportCommand, err)
		c.usage(c.stderr)
		return exitUsage
	}
	// Now, and not after hours of measuring, it shows whether the files can be written.
	text, err := newDraft(*out)
	if err == nil {
		defer text.discard()
	}
	shown, pageErr := newDraft(strings.TrimSuffix(*out, filepath.Ext(*out)) + ".html")
	if pageErr == nil {
		defer shown.discard()
	}
	if err := errors.Join(err, pageErr); err != nil {
		fmt.Fprintf(c.stderr, "bench %s: %v\n", reportCommand, err)
		return exitFailed
	}
	interrupted := func() int {
		fmt.Fprintf(c.stderr, "bench %s: interrupted, %s is as it was\n", reportCommand, *out)
		return exitInterrupted
	}
	on, began, failed := thisMachine(ctx), time.Now(), false
	var all []result
	for i, s := range c.scenarios {
		fmt.Fprintf(c.stderr, "\n== %d of %d: %s, after %v\n", i+1, len(c.scenarios), s.name, time.Since(began).Round(time.Second))
		size, start := s.full, time.Now()
		if *quick {
			size = s.quick
		}
		r, err := c.measure(ctx, s, size)
		if ctx.Err() != nil {
			return interrupted()
		}
		if err == nil {
			err = r.write(c.stderr, false)
		}
		if err != nil {
			failed = true
			fmt.Fprintf(c.stderr, "bench %s: %v\n", s.name, err)
		}
		all = append(all, result{s, r, err, time.Since(start)})
	}
	under := c.attackAll(ctx, *quick)
	if ctx.Err() != nil {
		return interrupted()
	}
	writeReport(text, all, under, on, began, *quick)
	if err := errors.Join(writePage(shown, all, under, on, began, *quick), text.keep(), shown.keep()); err != nil {
		fmt.Fprintf(c.stderr, "bench %s: %v\n", reportCommand, err)
		return exitFailed
	}
	fmt.Fprintf(c.stdout, "%s and %s: %s\n", text.name, shown.name, verdict(all, *quick))
	if failed || slices.ContainsFunc(under, func(a attacked) bool { return a.err != nil || !a.good }) {
		return exitFailed
	}
	return exitOK
}
