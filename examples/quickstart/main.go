// Quickstart walks events through every part of Millrace while processes are killed and messages are delivered twice.
//
// An API process completes labours (POST /labours/{id}/complete): the labour and the event labour.completed are written
// in one PostgreSQL transaction. A relay process forwards the event to the broker. Consumer processes claim it, write a
// notification and send a text message to the family, and publish notification.sent in the same transaction, which a
// second consumer counts. Meanwhile processes get SIGKILL at random moments and a share of the events is published twice.
//
// At the end an independent reader looks at the tables and at the texts that the SMS provider sent, and tells how many
// effects were lost or doubled. Exit status: 0 when none was, 1 when some were, 2 when it could not run.
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

	"github.com/millrace-go/millrace/internal/role"
)

const (
	exitOK      = 0
	exitVerdict = 1
	exitTrouble = 2
)

func main() {
	if role.Name() != "" {
		os.Exit(role.Play(playRole))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// options are the command's flags.
type options struct {
	events     int
	consumers  int
	kills      int
	duplicates float64
	broker     string
	push       bool
	without    string
	verbose    bool
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&o.events, "events", 2000, "labours to complete, one event each")
	f.IntVar(&o.consumers, "consumers", 2, "consumer processes")
	f.IntVar(&o.kills, "kills", 20, "processes to kill with SIGKILL (API, relay and consumers; each is started again)")
	f.Float64Var(&o.duplicates, "duplicates", 0.3, "share of the events that is published twice, 0 to 1")
	f.StringVar(&o.broker, "broker", "pubsub", "pubsub, kafka, or memory: everything in this process, without kills")
	f.BoolVar(&o.push, "push", false, "Pub/Sub pushes the events to the consumers over HTTP, instead of their pulling them")
	f.StringVar(&o.without, "without", "", "leave a part out to see what happens then: claim or outbox")
	f.BoolVar(&o.verbose, "v", false, "show the processes' logs")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	killsSet := false
	f.Visit(func(f *flag.Flag) { killsSet = killsSet || f.Name == "kills" })
	if o.broker == "memory" && !killsSet {
		o.kills = 0
	}
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(f.NArg() > 0, "unexpected argument %q: this command takes flags only", f.Arg(0))
	bad(o.events < 1 || o.events > 1_000_000, "-events is %d: want 1 to 1000000", o.events)
	bad(o.consumers < 1 || o.consumers > 16, "-consumers is %d: want 1 to 16", o.consumers)
	bad(o.kills < 0 || o.kills > 1000, "-kills is %d: want 0 to 1000", o.kills)
	bad(!(o.duplicates >= 0 && o.duplicates <= 1), "-duplicates is %v: want 0 to 1", o.duplicates)
	switch o.broker {
	case "pubsub", "kafka":
	case "memory":
		bad(o.kills > 0, "-kills is %d: with -broker memory everything runs in one process, so nothing can be killed; leave -kills out or use -broker pubsub or kafka", o.kills)
		bad(o.without == "outbox", "-without outbox: an event is lost when the API is killed between commit and publish, and with -broker memory nothing can be killed; use -broker pubsub or kafka")
	default:
		bad(true, "-broker is %q: want pubsub, kafka or memory", o.broker)
	}
	bad(o.push && o.broker != "pubsub", "-push is Pub/Sub's: with -broker %s there is none; leave -push out or use -broker pubsub", o.broker)
	bad(o.without != "" && o.without != "claim" && o.without != "outbox", "-without is %q: want claim or outbox", o.without)
	return o, errors.Join(errs...)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitTrouble
	}
	v, err := play(ctx, o, stdout, stderr)
	switch {
	case errors.As(err, new(tearDownError)):
		fmt.Fprintln(stderr, "\nquickstart: something that was started may be left:", err)
		return exitTrouble
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "\nstopped; everything that was started is gone")
		return exitTrouble
	case err != nil:
		fmt.Fprintln(stderr, "\nquickstart:", err)
		return exitTrouble
	case !v.good():
		return exitVerdict
	}
	return exitOK
}
