package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
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

// reportAll runs the scenarios in turn and writes the file at the end. A scenario that fails is reported as such, and the
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
	// Now, and not after hours of measuring, it shows whether the file can be written.
	draft, err := os.CreateTemp(filepath.Dir(*out), ".report-*")
	if err != nil {
		fmt.Fprintf(c.stderr, "bench %s: %v\n", reportCommand, err)
		return exitFailed
	}
	defer func() {
		draft.Close()
		_ = os.Remove(draft.Name()) // not there any more when all went well
	}()
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
			fmt.Fprintf(c.stderr, "bench %s: interrupted, %s is as it was\n", reportCommand, *out)
			return exitInterrupted
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
	writeReport(draft, all, on, began, *quick)
	if err := errors.Join(draft.Chmod(0o644), draft.Sync(), os.Rename(draft.Name(), *out)); err != nil {
		fmt.Fprintf(c.stderr, "bench %s: %v\n", reportCommand, err)
		return exitFailed
	}
	fmt.Fprintf(c.stdout, "%s: %s\n", *out, verdict(all, *quick))
	if failed {
		return exitFailed
	}
	return exitOK
}
