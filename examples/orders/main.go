// Orders is an order processor on Kafka that is killed at random moments: orders → order-results, each order with one
// result, never two and never none.
//
// Processor processes take orders and publish their results with transactional delivery: a result and the offset of its
// order are committed in one Kafka transaction. Meanwhile they get SIGKILL and are started again. At the end a reader that
// is read_committed and shares no code with the processors counts the results of each order.
//
// Exit status: 0 when each order has one result, 1 when some have none or several, 2 when it could not run. With
// -delivery at-least-once the same processors, without transactions, show why they are there.
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
	"github.com/millrace-go/millrace/transport/kafka"
)

const (
	exitOK      = 0
	exitVerdict = 1
	exitTrouble = 2
)

func main() {
	if role.Name() != "" {
		os.Exit(role.Play(process))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// deliveries is what -delivery may be.
var deliveries = map[string]kafka.Delivery{
	"transactional": kafka.Transactional,
	"at-least-once": kafka.AtLeastOnce,
}

// options are the command's flags.
type options struct {
	orders     int
	processors int
	kills      int
	delivery   string
	verbose    bool
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("orders", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&o.orders, "orders", 3000, "orders to process")
	f.IntVar(&o.processors, "processors", 2, "processor processes, which share the 4 partitions of the orders")
	f.IntVar(&o.kills, "kills", 10, "processors to kill with SIGKILL; each is started again")
	f.StringVar(&o.delivery, "delivery", "transactional", "transactional, or at-least-once: see what happens then")
	f.BoolVar(&o.verbose, "v", false, "show the processors' logs")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(f.NArg() > 0, "unexpected argument %q: this command takes flags only", f.Arg(0))
	bad(o.orders < 1 || o.orders > 1_000_000, "-orders is %d: want 1 to 1000000", o.orders)
	bad(o.processors < 1 || o.processors > 4, "-processors is %d: want 1 to 4", o.processors)
	bad(o.kills < 0 || o.kills > 1000, "-kills is %d: want 0 to 1000", o.kills)
	_, known := deliveries[o.delivery]
	bad(!known, "-delivery is %q: want transactional or at-least-once", o.delivery)
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
	case err != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		fmt.Fprintln(stderr, "\nstopped; everything that was started is gone")
		return exitTrouble
	case err != nil:
		fmt.Fprintln(stderr, "\norders:", err)
		return exitTrouble
	case !v.good():
		return exitVerdict
	}
	return exitOK
}
