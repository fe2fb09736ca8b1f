package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/transport"
)

func consumerCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{Use: "consumer", Short: "Set where a consumer goes on reading a topic", Args: cobra.NoArgs, RunE: cli.NeedsCommand}
	c.AddCommand(consumerReset(a))
	return c
}

// resetPatience bounds the closing of the transport.
const resetPatience = 10 * time.Second

func consumerReset(a *cli.App) *cobra.Command {
	var r transport.Reset
	var to string
	var yes bool
	c := &cobra.Command{
		Use: "reset --topic TOPIC --consumer CONSUMER --to {earliest | latest | TIME | offset P:N… | snapshot NAME} {--dry-run | --yes}", ValidArgsFunction: cobra.NoFileCompletions,
		Short: "Have a consumer read a topic again, or skip a part of it",
		Long: "Sets where a consumer goes on reading a topic. It needs no database.\n\n" +
			"On Kafka it sets the committed offsets of the consumer's group, and says from where to where. It refuses while processes of the\n" +
			"consumer run: stop them. On Pub/Sub it seeks the consumer's subscription, with its processes running or not; Pub/Sub takes up to\n" +
			"a minute, and brings back only messages that it keeps after they are acked.\n\n" +
			"Events that were handled before are delivered again, with the same IDs. A claim does not run them again; they become dead letters\n" +
			"if they are older than its retention. A handler without a claim runs again. What a reset skips is not delivered.",
		Example: "  millrace consumer reset --config millrace.yaml --topic labour.completed --consumer labour.notify-family --to earliest --dry-run\n" +
			"  millrace consumer reset --config millrace.yaml --topic labour.completed --consumer labour.notify-family --to 2026-01-31T14:00:00Z --yes\n" +
			"  millrace consumer reset --broker kafka --topic labour.completed --consumer labour.notify-family --to offset 0:1200 1:1180 --yes",
	}
	f := c.Flags()
	f.StringVar(&a.File, "config", "", "configuration file of a service, which names its broker")
	f.StringVar(&r.Topic, "topic", "", "the topic (required)")
	f.StringVar(&r.Consumer, "consumer", "", "the consumer as the broker knows it, service.handler (required)")
	f.StringVar(&to, "to", "", `where it goes on: "earliest", "latest", a time, an age such as 2d, "offset" with PARTITION:OFFSET… (Kafka), or "snapshot" with its name (Pub/Sub)`)
	f.BoolVar(&r.DryRun, "dry-run", false, "say what would be done, and do nothing")
	f.BoolVar(&yes, "yes", false, "do it")
	a.Broker.Flags(c)
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		switch {
		case r.Topic == "" || r.Consumer == "":
			return cli.Misuse(errors.New("--topic or --consumer is missing: want both"))
		case r.DryRun == yes:
			return cli.Misuse(errors.New("want --dry-run to see what would be done, or --yes to do it"))
		}
		if r.To, err = parsePosition(to, args, time.Now()); err != nil {
			return cli.Misuse(err)
		}
		if err := a.Broker.Check(); err != nil {
			return err
		}
		ctx, stop := cli.UntilSignal()
		defer stop()
		defer a.ShowProgress(c.CommandPath())()
		return reset(ctx, a, r, strings.Join(append([]string{to}, args...), " "))
	}
	return a.Prints(c)
}

// parsePosition parses the flag --to and its arguments.
func parsePosition(to string, args []string, now time.Time) (p transport.Position, err error) {
	switch to {
	case "":
		return p, errors.New("--to is missing: want earliest, latest, a time, offset PARTITION:OFFSET or snapshot NAME")
	case "offset":
		p.Offsets = map[int32]int64{}
		for _, arg := range args {
			before, after, _ := strings.Cut(arg, ":")
			partition, err := strconv.ParseUint(before, 10, 31)
			offset, err2 := strconv.ParseUint(after, 10, 63)
			if _, twice := p.Offsets[int32(partition)]; err != nil || err2 != nil || twice { //nolint:gosec // it has 31 bits
				return p, fmt.Errorf("--to offset has %q: want PARTITION:OFFSET, such as 0:1200, and each partition once", arg)
			}
			p.Offsets[int32(partition)] = int64(offset) //nolint:gosec // they have 31 and 63 bits
		}
		if len(args) == 0 {
			return p, errors.New("--to offset without an offset: want PARTITION:OFFSET behind it, such as 0:1200")
		}
		return p, nil
	case "snapshot":
		if len(args) != 1 {
			return p, errors.New("--to snapshot: want the name of one snapshot behind it")
		}
		p.Snapshot = args[0]
		return p, nil
	case "earliest":
		p.Earliest = true
	case "latest":
		p.Latest = true
	default:
		if p.Time, err = words.ParseMoment(to, now); err != nil {
			return p, fmt.Errorf("--to is %q: %w, or earliest, latest, offset PARTITION:OFFSET or snapshot NAME", to, err)
		}
	}
	if len(args) > 0 {
		return p, fmt.Errorf("--to %s with %q: want nothing behind it", to, strings.Join(args, " "))
	}
	return p, nil
}

// reset resets a consumer. to is the value of the flag --to.
func reset(ctx context.Context, a *cli.App, r transport.Reset, to string) (err error) {
	if a.File != "" {
		if err := a.LoadBroker(); err != nil {
			return err
		}
	}
	if name := a.BrokerName(); name != "pubsub" && name != "kafka" { // broker "memory" exists only inside a service
		return cli.WantBroker(name)
	}
	broker, err := a.OpenBroker(ctx, slog.New(slog.DiscardHandler), resetPatience)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	resetter, ok := broker.(transport.Resetter)
	if !ok {
		return fmt.Errorf("broker %s cannot reset a consumer", broker.Name())
	}
	moves, err := resetter.Reset(ctx, r)
	if len(moves) > 0 && !a.JSON && (err == nil || r.DryRun) {
		printMoves(a, moves)
	}
	switch {
	case err != nil:
		return err
	case a.JSON:
		return a.PrintJSON(map[string]any{"topic": r.Topic, "consumer": r.Consumer, "to": to, "dry_run": r.DryRun, "moves": append([]transport.Move{}, moves...)})
	case r.DryRun:
		a.Say("Nothing was changed. With --yes consumer %s goes on reading topic %s at: %s.", words.OneLine(r.Consumer), words.OneLine(r.Topic), words.OneLine(to))
	default:
		a.Say("Consumer %s goes on reading topic %s at: %s.", words.OneLine(r.Consumer), words.OneLine(r.Topic), words.OneLine(to))
	}
	a.Say("Events that it has handled and gets again are not run again by a claim; a handler without a claim runs again.")
	return nil
}

func printMoves(a *cli.App, moves []transport.Move) {
	rows := make([][]string, 0, len(moves))
	for _, m := range moves {
		from := "none"
		if m.From >= 0 {
			from = strconv.FormatInt(m.From, 10)
		}
		rows = append(rows, []string{strconv.Itoa(int(m.Partition)), from, strconv.FormatInt(m.To, 10)})
	}
	a.Table("PARTITION FROM TO", rows)
}
