// Systemtest is Apache Kafka's own system tests of transactions (tests/kafkatest/tests/core: transactions_test and
// group_mode_transactions_test), for transport/kafka's transactional delivery on a cluster of three brokers.
//
// Copier processes take messages from one topic and publish them to another, while brokers or the copiers themselves are
// stopped or killed. A reader that is read_committed and shares no code with the copiers reads along, and another one
// everything at the end: no message may be missing or there twice, and in the second test none may overtake an earlier
// one of its partition.
//
// What is killed is shown on standard error, the verdicts on standard output. Exit status: 0 when all are good, 1 when one
// is not, 2 when the tests could not run. With -delivery at-least-once the verdict must fail: it shows that it can.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/internal/role"
)

const (
	exitOK      = 0
	exitVerdict = 1
	exitTrouble = 2
)

func main() {
	if role.Name() != "" {
		os.Exit(role.Play(playCopier))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// options are the command's flags.
type options struct {
	messages int
	delivery string
	run      *regexp.Regexp
	verbose  bool
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("systemtest", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&o.messages, "messages", 20_000, "messages to copy in each test; Apache Kafka's own copy 100000")
	f.StringVar(&o.delivery, "delivery", transactional, "transactional; at-least-once, which must fail; franz-go, whose GroupTransactSession copies for comparison")
	pattern := f.String("run", "", "run the tests whose names match this regular expression")
	f.BoolVar(&o.verbose, "v", false, "show the copiers' logs")
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
	bad(o.messages < 100 || o.messages > 10_000_000, "-messages is %d: want 100 to 10000000", o.messages)
	_, known := copiers[o.delivery]
	bad(!known, "-delivery is %q: want %s, %s or %s", o.delivery, transactional, atLeastOnce, franzGo)
	var err error
	o.run, err = regexp.Compile(*pattern)
	bad(err != nil, "-run: %v", err)
	bad(err == nil && len(chosen(o.run)) == 0, "-run is %q, which no test's name matches", *pattern)
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
	good, err := runAll(ctx, o, stdout, stderr)
	switch {
	case err != nil:
		fmt.Fprintln(stderr, "systemtest:", err)
		return exitTrouble
	case !good:
		return exitVerdict
	}
	return exitOK
}

// runAll runs the chosen tests one after another on one cluster.
func runAll(ctx context.Context, o options, stdout, stderr io.Writer) (good bool, err error) {
	began := time.Now()
	cluster, err := devstack.StartKafka(ctx, devstack.KafkaConfig{Settings: map[string]string{
		"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000", // the default of 10 s only prolongs the tests
	}})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	fmt.Fprintf(stderr, "%s in %.1f s\n", cluster.Source(), time.Since(began).Seconds())
	good = true
	for _, t := range chosen(o.run) {
		v, err := t.run(ctx, cluster, o, stderr)
		if err != nil {
			return false, fmt.Errorf("%s: %w\n%s", t.name(), err, cluster.LogTail())
		}
		fmt.Fprintln(stdout, v.line(t.name()))
		good = good && v.good()
	}
	fmt.Fprintf(stderr, "%.0f s in all\n", time.Since(began).Seconds())
	return good, nil
}
