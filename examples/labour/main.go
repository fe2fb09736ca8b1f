// Labour is FernLabour, which tells a family by text message that a labour is completed. It shows cases in which such a service loses or
// repeats effects. Each case runs twice: with the code that one writes first, and with Millrace.
//
// The labour service completes a labour and publishes labour.completed (labour.go). The notification service writes a notification for
// each subscriber and sends the text (notify.go). cases.go has the failures: the bus is down, the database goes away, an ack is lost, two
// consumers handle the same event, a consumer fails after the text.
//
// Exit status: 0 if with Millrace each family was told once in every case, 1 if not, 2 if it could not run. With -naive the other code is
// judged.
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"

	"github.com/millrace-go/millrace/examples/internal/stage"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/outbox"
)

var command = stage.Command{Name: "labour", Play: play}

func main() { command.Main() }

// options are the command's flags.
type options struct {
	stage.Common
	naive bool
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := o.Flags("labour", 0, stderr)
	f.StringVar(&o.Broker, "broker", "pubsub", "pubsub, kafka or memory")
	f.BoolVar(&o.naive, "naive", false, "judge the code without Millrace")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	return o, o.Check(stage.Wrong(o.Kills > 0, "-kills is %d: this example kills nothing; see examples/payments", o.Kills))
}

//go:embed schema.sql
var schemaSQL string

func play(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	s, err := stage.SetUp(ctx, stage.Setting{Name: "labour", Args: args, Broker: o.Broker, Tables: stage.Tables(schemaSQL, outbox.Migrate, claim.Migrate, effect.Migrate), Logs: o.Logs(stderr)}, stdout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.TearDown()) }()
	cast, err := s.NewCast(ctx, nil)
	if err != nil {
		return err
	}
	defer cast.Close()
	p, disconnect, err := cast.Main(ctx)
	if err != nil {
		return err
	}
	defer disconnect()

	fmt.Fprintln(stdout)
	good := true
	for i, c := range cases {
		results := [2]outcome{}
		for j, ways := range []ways{c.naive, withMillrace} {
			if results[j], err = playCase(ctx, p, int64(10*i+j+1), c, ways); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
		fmt.Fprintf(stdout, "%d. %s\n   %-40s %s\n   %-40s %s\n", i+1, c.name, c.naive.name+":", results[0], withMillrace.name+":", results[1])
		judged := results[1]
		if o.naive {
			judged = results[0]
		}
		good = good && judged.good()
	}
	t := stage.Table{Out: stdout}
	fmt.Fprintln(stdout)
	switch {
	case good:
		t.Line("verdict", "each family was told once, whatever went wrong")
		return nil
	case o.naive:
		t.Line("verdict", "this is what happens without Millrace")
	default:
		t.Line("verdict", "FAILED")
	}
	return stage.ErrVerdict
}
