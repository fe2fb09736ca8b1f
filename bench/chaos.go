package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/millrace-go/millrace/bench/chaos"
)

const chaosCommand = "chaos"

// chaosOptions are the command's flags.
type chaosOptions struct {
	chaos.Config
	quick, asJSON, sabotage bool
	out, kinds              string
}

func parseChaos(args []string) (o chaosOptions, err error) {
	flags := flag.NewFlagSet(chaosCommand, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Int64Var(&o.Seed, "seed", time.Now().UnixNano()%1_000_000, "")
	flags.DurationVar(&o.Duration, "duration", 10*time.Minute, "")
	flags.StringVar(&o.Broker, "broker", chaos.PubSub, "")
	flags.StringVar(&o.Without, "without", "", "")
	flags.BoolVar(&o.sabotage, "sabotage", false, "")
	flags.BoolVar(&o.quick, "quick", false, "")
	flags.BoolVar(&o.asJSON, "json", false, "")
	flags.StringVar(&o.out, "out", "", "")
	flags.StringVar(&o.kinds, "kinds", "", "")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.sabotage && o.asJSON {
		return o, errors.New("-sabotage prints a table: leave -json out")
	}
	if o.quick {
		o.Duration = time.Minute
	}
	if o.kinds != "" {
		o.Kinds = strings.Split(o.kinds, ",")
	}
	return o, nil
}

// chaos attacks the whole system and returns exitFailed when the auditor found something.
func (c command) chaos(ctx context.Context, args []string) int {
	o, err := parseChaos(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		c.usage(c.stdout)
		return exitOK
	case err != nil:
		fmt.Fprintf(c.stderr, "bench chaos: %v\n\n", err)
		c.usage(c.stderr)
		return exitUsage
	}
	good, err := c.attack(ctx, o)
	switch {
	case err != nil && ctx.Err() != nil:
		fmt.Fprintln(c.stderr, "bench chaos: interrupted")
		return exitInterrupted
	case err != nil:
		fmt.Fprintf(c.stderr, "bench chaos: %v\n", err)
		return exitFailed
	case !good:
		return exitFailed
	}
	return exitOK
}

func (c command) attack(ctx context.Context, o chaosOptions) (good bool, err error) {
	o.Out = c.stderr
	if o.out != "" {
		if err := os.MkdirAll(o.out, 0o755); err != nil {
			return false, err
		}
		logs, err := os.Create(filepath.Join(o.out, "processes.log"))
		if err != nil {
			return false, err
		}
		defer logs.Close()
		o.Logs = logs
	}
	if o.sabotage {
		return chaos.Matrix(ctx, o.Config, c.stdout)
	}
	r, err := chaos.Run(ctx, o.Config)
	if err != nil {
		return false, err
	}
	write := r.Write
	if o.asJSON {
		write = r.WriteJSON
	}
	if err := write(c.stdout); err != nil {
		return false, err
	}
	if o.out != "" {
		name := filepath.Join(o.out, fmt.Sprintf("chaos-%s-%d", o.Broker, o.Seed))
		err = errors.Join(toFile(name+".svg", r.WriteSVG), toFile(name+".json", r.WriteJSON))
	}
	return r.Good(), err
}

func toFile(name string, write func(io.Writer) error) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(file), file.Close())
}
