package dead

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

func replayCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{
		Use: "replay {EVENT-ID… | --consumer NAME | --group GROUP | --key KEY | --topic TOPIC | --reason REASON | --all | --resume ID}", ValidArgsFunction: cobra.NoFileCompletions, Short: "Retry dead letters",
		Long: "Retries dead letters, with all their attempts and in their original order. Events blocked by them follow.\n" +
			"A running service of the consumer handles them; until one runs they wait.\n\n" +
			"With --rate or --max-failed the command tells its progress, and the replay is kept in the database: \"dead replays\"\n" +
			"lists it with what became of its events, \"dead stop\" stops it from anywhere, and --resume continues it after it was\n" +
			"stopped or its command was killed. With --max-failed it retries 20 events first, and more as those are handled.",
		Example: "  millrace dead replay 0198c0de…3f2a\n  millrace dead replay --group 3f2a9c1e --note \"deployed the fix\"\n" +
			"  millrace dead replay --topic labour.completed --since 2d --reason deadline --dry-run\n" +
			"  millrace dead replay --consumer labour/notify-family --rate 50 --max-failed 5\n  millrace dead replay --resume 7 --rate 200",
	}
	p := &pace{flags: c}
	f := c.Flags()
	f.IntVar(&p.rate, "rate", 0, "at most this many events a second (default: no limit)")
	f.Float64Var(&p.maxFailed, "max-failed", 100, "stop when more than this percentage of the retried events fails again")
	f.Int64Var(&p.resume, "resume", 0, "continue the replay with this ID, at its pace or at the one given")
	return actionCommand(a, deadletter.Replay, p, []string{"dead", "retrying"}, "will be retried now", c)
}

// pace has the flags of "dead replay" about the pace. It is nil for commands without them.
type pace struct {
	flags     *cobra.Command
	rate      int
	maxFailed float64 // percent
	resume    int64
}

func (p *pace) given() bool {
	return p != nil && (p.flags.Flags().Changed("rate") || p.flags.Flags().Changed("max-failed"))
}

func (p *pace) resumes() bool { return p != nil && p.flags.Flags().Changed("resume") }

func (p *pace) check() error {
	switch {
	case p == nil:
	case p.rate < 0 || p.rate == 0 && p.flags.Flags().Changed("rate"):
		return cli.Misuse(fmt.Errorf("--rate is %d: want 1 or more events a second", p.rate))
	case !(p.maxFailed >= 0 && p.maxFailed <= 100):
		return cli.Misuse(fmt.Errorf("--max-failed is %v: want a percentage from 0 to 100", p.maxFailed))
	case p.resumes() && p.resume <= 0:
		return cli.Misuse(fmt.Errorf("--resume is %d: want an ID from \"millrace dead replays\"", p.resume))
	}
	return nil
}

func (p *pace) pace() deadletter.Pace {
	return deadletter.Pace{Rate: p.rate, MaxFailed: p.maxFailed / 100}
}

func beginReplay(ctx context.Context, a *cli.App, pool *pgxpool.Pool, s deadletter.Selection, p *pace, by deadletter.By) error {
	id, err := deadletter.BeginReplay(ctx, pool, a.Schema, s, p.pace(), by)
	if errors.Is(err, deadletter.ErrNoSuchEvent) {
		return errors.New(noSuchEvent)
	}
	if err != nil {
		return err
	}
	return continueReplay(ctx, a, pool, id)
}

func resumeReplay(a *cli.App, c *cobra.Command, args []string, p *pace, by deadletter.By) error {
	var alone error
	c.Flags().Visit(func(f *pflag.Flag) {
		if c.LocalFlags().Lookup(f.Name) != nil && !slices.Contains([]string{"resume", "rate", "max-failed", "actor", "note", "output", "json"}, f.Name) {
			alone = cli.Misuse(fmt.Errorf("--resume cannot be combined with --%s: the replay keeps what it began with", f.Name))
		}
	})
	if len(args) > 0 {
		alone = cli.Misuse(errors.New("--resume cannot be combined with event IDs: the replay keeps what it began with"))
	}
	if alone != nil {
		return alone
	}
	return a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		var changed *deadletter.Pace
		if p.given() {
			before, err := deadletter.ShowReplay(ctx, pool, a.Schema, p.resume)
			if err != nil {
				return noReplay(err)
			}
			changed = &before.Pace
			if c.Flags().Changed("rate") {
				changed.Rate = p.pace().Rate
			}
			if c.Flags().Changed("max-failed") {
				changed.MaxFailed = p.pace().MaxFailed
			}
		}
		if err := deadletter.ResumeReplay(ctx, pool, a.Schema, p.resume, changed, by); err != nil {
			return noReplay(err)
		}
		return continueReplay(ctx, a, pool, p.resume)
	})(c, args)
}

// noReplay adds to an error the command that lists replays.
func noReplay(err error) error {
	if errors.Is(err, deadletter.ErrNoSuchReplay) {
		return fmt.Errorf(`%w: run "millrace dead replays" to see which there are`, err)
	}
	return err
}

// continueReplay continues a replay and shows its progress. If the replay ends early, it says how to continue it.
func continueReplay(ctx context.Context, a *cli.App, pool *pgxpool.Pool, id int64) error {
	r, err := deadletter.ContinueReplay(ctx, pool, a.Schema, id, func(r deadletter.ReplayStatus) {
		a.Progress.Say(fmt.Sprintf("Replay %d: %d of %s retried; %s", id, r.Replayed, words.Count(r.Selected, "event"), outcome(r)))
	})
	if err == nil && r.State == deadletter.ReplayStopped {
		err = fmt.Errorf("replay %d was stopped after %s: %s", id, words.Count(r.Replayed, "event"), r.Reason)
	}
	if err != nil {
		return fmt.Errorf("%w\nTo continue it, run: %s", err, a.Reach.Command("", "dead", "replay", "--resume", strconv.FormatInt(id, 10)))
	}
	if a.JSON {
		return a.PrintJSON(r)
	}
	a.Say("Replay %d has finished: %s %s retried; %s.", id, words.Count(r.Replayed, "event"), words.Pick(r.Replayed, "is", "are"), outcome(r))
	for _, line := range leftAlone(deadletter.Result{InFlight: r.InFlight}) {
		a.Say("%s", a.Terminal.Yellow(line))
	}
	if r.Untried+r.Retrying > 0 {
		a.Say("What became of them: %s", a.Reach.Command("", "dead", "replays", strconv.FormatInt(id, 10)))
	}
	return nil
}

// outcome describes the results of a replay's events.
func outcome(r deadletter.ReplayStatus) string {
	parts := []string{bounded(r.Handled, "at most ", r.AtLeast) + " handled"}
	for _, p := range []struct {
		n       int
		atLeast bool
		what    string
	}{{r.Untried, r.AtLeast, "not tried yet"}, {r.Retrying, r.AtLeast, "failed again and retrying"}, {r.Dead, r.AtLeast, "dead again"}, {r.Superseded, false, "replayed again or discarded since"}} {
		if p.n > 0 {
			parts = append(parts, bounded(p.n, "at least ", p.atLeast)+" "+p.what)
		}
	}
	return strings.Join(parts, ", ")
}

// bounded returns the number, behind the word if it is only a bound.
func bounded(n int, word string, only bool) string {
	if !only {
		word = ""
	}
	return word + strconv.Itoa(n)
}

func replaysCommand(a *cli.App) *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use: "replays [ID]", ValidArgsFunction: cobra.NoFileCompletions, Short: "List replays at a pace, and what became of their events", Args: cobra.MaximumNArgs(1),
		Long: "Lists the replays that \"dead replay\" with --rate or --max-failed began: those that run first, then the latest.\n" +
			"Of their events, UNTRIED ones wait for a service of the consumer, RETRYING ones failed again, DEAD ones are dead letters again.\n" +
			"Of a large replay only the first events are counted: 2,000 in the list, and 20,000 with an ID.\n" +
			"A running replay whose last step is long ago has lost its command: continue it by \"dead replay --resume\".",
		Example: "  millrace dead replays\n  millrace dead replays 7 -o json",
	}
	cli.LimitVar(c, &limit)
	c.PreRunE = func(*cobra.Command, []string) error { return cli.CheckLimit(limit) }
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) (err error) {
		var found []deadletter.ReplayStatus
		if len(args) == 0 {
			found, err = deadletter.ListReplays(ctx, pool, a.Schema, limit)
		} else {
			id, wrong := cli.ReplayID(args[0], "millrace dead replays")
			if wrong != nil {
				return wrong
			}
			found = make([]deadletter.ReplayStatus, 1)
			found[0], err = deadletter.ShowReplay(ctx, pool, a.Schema, id)
		}
		switch {
		case err != nil:
			return noReplay(err)
		case a.JSON:
			return a.PrintJSON(append([]deadletter.ReplayStatus{}, found...))
		case len(found) == 0:
			a.Say("No replays.")
			return nil
		}
		var rows [][]string
		for _, r := range found {
			state := r.State
			if r.State == deadletter.ReplayRunning {
				state += ", last step " + a.AuditTime(r.Stepped)
			}
			rows = append(rows, []string{
				strconv.FormatInt(r.ID, 10), state, fmt.Sprintf("%d/%d", r.Replayed, r.Selected), bounded(r.Handled, "<= ", r.AtLeast), bounded(r.Untried, ">= ", r.AtLeast),
				bounded(r.Retrying, ">= ", r.AtLeast), bounded(r.Dead, ">= ", r.AtLeast), a.AuditTime(r.Started), words.OneLine(r.Actor), words.OneLine(cmp.Or(r.Reason, r.Note)),
			})
		}
		a.Table("ID STATE REPLAYED HANDLED UNTRIED RETRYING DEAD STARTED ACTOR~ WHY~?", rows)
		return nil
	})
	return a.Prints(c)
}

func stopCommand(a *cli.App) *cobra.Command {
	var by deadletter.By
	c := &cobra.Command{
		Use: "stop ID", ValidArgsFunction: cobra.NoFileCompletions, Short: "Stop a replay at a pace", Args: cli.Argument,
		Long:    "Stops a replay that \"dead replay\" with --rate or --max-failed began, wherever its command runs. What it has retried stays so.",
		Example: "  millrace dead stop 7 --note \"the fix is not deployed everywhere\"",
	}
	cli.AuditVar(c, &by.Actor, &by.Note)
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) error {
		id, err := cli.ReplayID(args[0], "millrace dead replays")
		if err == nil {
			err = noReplay(deadletter.StopReplay(ctx, pool, a.Schema, id, by))
		}
		if err != nil {
			return err
		}
		r, err := deadletter.ShowReplay(ctx, pool, a.Schema, id)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(r)
		}
		a.Say("Replay %d was stopped after %d of %s.", id, r.Replayed, words.Count(r.Selected, "event"))
		a.Say("To continue it, run: %s", a.Reach.Command("", "dead", "replay", "--resume", args[0]))
		return nil
	})
	return a.Prints(c)
}
