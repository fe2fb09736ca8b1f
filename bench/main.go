// Command bench measures Millrace against named peers, in one run on one machine: what it claims are ratios. It is a
// module of its own, so that its peers never enter a user's go.mod.
//
//	cd bench && go run . <scenario> [-quick] [-json]
//	cd bench && go run . report [-quick]
//	cd bench && go run . chaos -broker pubsub|kafka [-seed N] [-duration 10m] [-quick]
//
// The services come from package devstack: MILLRACE_POSTGRES_DSN, PUBSUB_EMULATOR_HOST and MILLRACE_KAFKA_BROKERS name
// servers, otherwise they are started for the run.
// Nothing is left behind, also after Ctrl-C.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/millrace-go/millrace/bench/chaos"
	"github.com/millrace-go/millrace/framework/devstack"
)

// named is the environment's variable for a server that is there already.
const named = "MILLRACE_POSTGRES_DSN"

// Exit codes.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130 // as a shell tells of SIGINT
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if len(os.Args) > 1 && os.Args[1] == elsewhereCommand {
		if err := elsewhere(ctx, os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(exitFailed)
		}
		return
	}
	if chaos.Playing() {
		os.Exit(chaos.Play())
	}
	code := command{scenarios: scenarios, attacks: attacks(time.Now().Unix() % 1_000_000), stdout: os.Stdout, stderr: os.Stderr}.run(ctx, os.Args[1:])
	os.Exit(code)
}

// command is the program without its process.
type command struct {
	scenarios      []scenario
	attacks        []attack // of the report
	stdout, stderr io.Writer
}

func (c command) usage(out io.Writer) {
	fmt.Fprint(out, "usage: bench <scenario> [-quick] [-json]\n       bench report [-quick] [-out REPORT.md]   every scenario in turn, then chaos on each broker\n       bench chaos [-broker pubsub|kafka] [-seed N]             faults, and whether the promises hold\n\nscenarios:\n")
	for _, s := range c.scenarios {
		fmt.Fprintf(out, "  %-14s %s\n", s.name, s.summary)
	}
	fmt.Fprint(out, `
flags:
  -quick  small sizes, under 60 s (claim, relay-held and console: 90 s): shows that it works and roughly how it stands; claim nothing from it
  -json   one line on stdout: {"scenario":…,"ratios":{…}} (each is the median over the runs)

flags of chaos:
  -broker    pubsub or kafka (default pubsub)
  -seed      of the schedule of faults; the same seed is the same schedule (default: another one each time)
  -duration  of the faults, about one in 2.7 s (default 10m); -quick is -duration 1m
  -kinds     of faults, with commas between (default: all)
  -without   a mechanism to switch off, to see that it is caught: see -sabotage
  -sabotage  shortly without each mechanism in turn, or the one of -without, and the table of what was found
  -json      everything as one line
  -out       a directory for the timeline (SVG), the JSON and the processes' log
exit status 1: something was found
`)
}

// run runs the scenario that the arguments name and returns the exit code.
func (c command) run(ctx context.Context, args []string) int {
	if len(args) == 0 {
		c.usage(c.stderr)
		return exitUsage
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		c.usage(c.stdout)
		return exitOK
	case reportCommand:
		return c.reportAll(ctx, args[1:])
	case chaosCommand:
		return c.chaos(ctx, args[1:])
	}
	s, ok := find(c.scenarios, args[0])
	if !ok {
		fmt.Fprintf(c.stderr, "bench: unknown scenario %q\n\n", args[0])
		c.usage(c.stderr)
		return exitUsage
	}
	flags := flag.NewFlagSet(s.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	quick := flags.Bool("quick", false, "")
	asJSON := flags.Bool("json", false, "")
	err := flags.Parse(args[1:])
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		c.usage(c.stdout)
		return exitOK
	case err != nil:
		fmt.Fprintf(c.stderr, "bench %s: %v\n\n", s.name, err)
		c.usage(c.stderr)
		return exitUsage
	}
	size := s.full
	if *quick {
		size = s.quick
	}
	report, err := c.measure(ctx, s, size)
	if err == nil {
		err = report.write(c.stdout, *asJSON)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		fmt.Fprintf(c.stderr, "bench %s: interrupted\n", s.name)
		return exitInterrupted
	case err != nil:
		fmt.Fprintf(c.stderr, "bench %s: %v\n", s.name, err)
		return exitFailed
	}
	return exitOK
}

// settings are what a production server has and a development stack does without: room for the tables in memory, so that
// neither side waits for pages that the other has pushed out, and commits that reach the disk. A drain commits once for a
// thousand rows, so there the disk would only be waited for between the runs.
func settings(s scenario) map[string]string {
	set := map[string]string{"fsync": "on", "shared_buffers": "1GB", "max_wal_size": "8GB"}
	if s.name == relayDrain.name || s.name == relayHeld.name {
		set["fsync"] = "off"
	}
	return set
}

// measure runs the scenario on the server that the environment names, or on one of its own.
func (c command) measure(ctx context.Context, s scenario, size size) (r *report, err error) {
	dsn, source := os.Getenv(named), named
	if dsn == "" && !s.brokers {
		server, err := devstack.StartServer(ctx, devstack.ServerConfig{Settings: settings(s)})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, server.Stop()) }()
		dsn, source = server.DSN(), server.Source()
	}
	if !s.brokers {
		fmt.Fprintf(c.stderr, "postgres: %s\n", source)
	}
	r, err = s.run(ctx, &environment{
		dsn:    dsn,
		source: source,
		size:   size,
		progress: func(format string, args ...any) {
			fmt.Fprintf(c.stderr, format+"\n", args...)
		},
	})
	if err != nil {
		return nil, err
	}
	r.scenario = s.name
	return r, nil
}
