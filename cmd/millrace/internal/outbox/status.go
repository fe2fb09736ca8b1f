package outbox

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

const (
	maxTopics  = 10   // shown by status
	maxReasons = 10   // shown by status
	maxCounted = 1000 // failed events whose reasons are counted
)

func statusCommand(a *cli.App) *cobra.Command {
	var shards bool
	c := &cobra.Command{
		Use: "status", Short: "Show what is unpublished, what failed, and which relays run", Args: cobra.NoArgs,
		Long: "Shows how many events are unpublished and for how long the oldest has waited, which events failed and why, which relays\n" +
			"run, and why the events of a topic wait: it is paused, or failing because the broker takes none of its events, or slow. It\n" +
			"counts up to 2,000 events of each shard. Shards are listed if something is wrong with them, or with --shards.",
		Example: "  millrace outbox status\n  millrace outbox status --shards --config millrace.yaml\n  millrace outbox status -o json",
	}
	c.Flags().BoolVar(&shards, "shards", false, "list all shards and topics, too")
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		r, err := outboxadmin.Inspect(ctx, pool, a.Schema)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(r)
		}
		if a.Several() {
			statusRow(a, r)
			return nil
		}
		var failed []outboxadmin.Event
		if len(r.Failed) > 0 {
			failed, err = outboxadmin.List(ctx, pool, a.Schema, outboxadmin.Listing{States: []string{"dead", "retrying"}, Limit: maxCounted})
			if err != nil {
				return err
			}
		}
		printReport(a, r, failed, shards)
		return nil
	})
	return a.Prints(cli.OnEachDatabase(c))
}

func printReport(a *cli.App, r *outboxadmin.Report, failed []outboxadmin.Event, shards bool) {
	line := func(name string, paint func(string) string, text string) {
		a.Say("%-8s %s", name, paint(text))
	}
	plain := func(text string) string { return text }

	switch {
	case r.Pending.N == 0:
		line("pending", plain, "none")
	case r.Oldest == nil:
		line("pending", plain, words.CountOf(r.Pending, "event"))
	default:
		line("pending", plain, fmt.Sprintf("%s; the oldest has waited for %s", words.CountOf(r.Pending, "event"), words.Duration(r.Age(r.Oldest))))
	}
	counts, paint := failedCounts(a, r)
	line("failed", paint, counts)
	switch {
	case r.Delayed.N == 0:
		line("delayed", plain, "none")
	case r.NextDue == nil:
		line("delayed", plain, words.CountOf(r.Delayed, "event"))
	default:
		line("delayed", plain, fmt.Sprintf("%s; the next one is due %s", words.CountOf(r.Delayed, "event"), words.When(r.At, *r.NextDue)))
	}
	printLanding(a, r, line)
	printRelays(a, r, line)
	printReasons(a, failed)
	printShards(a, r, shards)
	printTopics(a, r, shards)
}

// printLanding prints where events may be that no count has: in the WAL, until a relay has made rows of them.
func printLanding(a *cli.App, r *outboxadmin.Report, line func(name string, paint func(string) string, text string)) {
	switch l := r.Landing; {
	case l == nil:
	case l.Creating:
		line("landing", a.Terminal.Red, "a relay creates the slot, which waits for transactions that are open; publishers with outbox.store log are refused meanwhile")
	case !l.Created || l.Lost:
		line("landing", a.Terminal.Red, "no slot keeps events in the WAL, so publishers with outbox.store log are refused: start a relay with outbox.store log")
	case !l.Read:
		line("landing", a.Terminal.Yellow, fmt.Sprintf("no relay reads the WAL; events may be in %s of it, which are not counted here", words.Bytes(l.Behind)))
	case l.Stuck:
		line("landing", a.Terminal.Red, fmt.Sprintf("a relay reads the WAL, but last landed events %s: millrace doctor", words.When(r.At, *l.LandedAt)))
	default:
		line("landing", func(text string) string { return text }, fmt.Sprintf("a relay reads the WAL, %s behind; events in there are not counted here", words.Bytes(l.Behind)))
	}
	if l := r.Landing; l != nil && l.Cut != nil {
		line("", a.Terminal.Red, fmt.Sprintf("WAL was lost %s: millrace doctor", words.When(r.At, l.Cut.At)))
	}
}

// failedCounts returns the failed events by state, and the colour of the worst state.
func failedCounts(a *cli.App, r *outboxadmin.Report) (text string, paint func(string) string) {
	var counts []string
	paint = func(text string) string { return text }
	for _, state := range []string{"dead", "retrying", "blocked", "discarded"} {
		n := r.Failed[state]
		if n.N == 0 {
			continue
		}
		counts = append(counts, fmt.Sprintf("%v %s", n, state))
		if state == "dead" {
			paint = a.Terminal.Red
		} else if state == "retrying" && r.Failed["dead"].N == 0 {
			paint = a.Terminal.Yellow
		}
	}
	if len(counts) == 0 {
		return "none", paint
	}
	return strings.Join(counts, ", "), paint
}

func printRelays(a *cli.App, r *outboxadmin.Report, line func(name string, paint func(string) string, text string)) {
	var running []string
	held := 0
	for _, relay := range r.Relays {
		if relay.Alive {
			name := words.OneLine(relay.Name)
			if name == "" {
				name = relay.ID
			}
			running = append(running, fmt.Sprintf("%s (%s)", name, words.Count(relay.Shards, "shard")))
			held += relay.Shards
		}
	}
	switch free := len(r.Shards) - held; {
	case len(running) == 0:
		line("relays", a.Terminal.Yellow, `none, so nothing is published: start a service, or "millrace relay"`)
	case free > 0:
		line("relays", a.Terminal.Yellow, fmt.Sprintf("%d running, but %d of %s are held by none", len(running), free, words.Count(len(r.Shards), "shard")))
	default:
		line("relays", a.Terminal.Green, fmt.Sprintf("%d running, all %s are held", len(running), words.Count(len(r.Shards), "shard")))
	}
	for _, relay := range running {
		a.Say("%-8s %s", "", a.Terminal.Dim(relay))
	}
}

// printReasons prints the number of failed events by state and reason.
func printReasons(a *cli.App, failed []outboxadmin.Event) {
	type kind struct{ state, reason string }
	counts := map[kind]int{}
	var kinds []kind
	for _, f := range failed {
		k := kind{f.State, words.OneLine(words.Beginning(f.Reason))}
		if counts[k] == 0 {
			kinds = append(kinds, k)
		}
		counts[k]++
	}
	if len(kinds) == 0 {
		return
	}
	slices.SortStableFunc(kinds, func(a, b kind) int { return counts[b] - counts[a] })
	var rows [][]string
	for _, k := range kinds[:min(len(kinds), maxReasons)] {
		rows = append(rows, []string{strconv.Itoa(counts[k]), k.state, k.reason})
	}
	a.Say("")
	a.Table("FAILED STATE REASON~", rows)
	if len(kinds) > maxReasons {
		a.Say("and %s more: millrace outbox list", words.Count(len(kinds)-maxReasons, "reason"))
	}
	if len(failed) == maxCounted {
		a.Say("The first %d failed events were counted.", maxCounted)
	}
}

func printShards(a *cli.App, r *outboxadmin.Report, all bool) {
	var rows [][]string
	for _, s := range r.Shards {
		var trouble []string
		if s.UncleanTakeovers > 0 {
			trouble = append(trouble, words.Count(s.UncleanTakeovers, "unclean takeover"))
		}
		if s.Suspect != "" {
			trouble = append(trouble, fmt.Sprintf("relays ended %s while they sent %s", words.Count(s.Attempts, "time"), words.OneLine(s.Suspect)))
		}
		if !all && len(trouble) == 0 {
			continue
		}
		oldest, lease := "", "free"
		if s.Oldest != nil {
			oldest = words.Duration(r.Age(s.Oldest))
		}
		if s.Held {
			lease = words.Duration(s.Expires.Sub(r.At))
		} else if s.Relay != "" {
			lease = "expired"
		}
		rows = append(rows, []string{strconv.Itoa(s.Shard), s.Pending.String(), oldest, lease, words.OneLine(s.Relay), strings.Join(trouble, "; ")})
	}
	if len(rows) > 0 {
		a.Say("")
		a.Table("SHARD PENDING OLDEST LEASE RELAY~? TROUBLE~", rows)
	}
}

// counted formats a count of a topic: "–" if none of the rows that were counted is the topic's, and others were not counted.
func counted(c outboxadmin.Count) string {
	if !c.Known() {
		return "–"
	}
	return c.String()
}

func printTopics(a *cli.App, r *outboxadmin.Report, all bool) {
	var rows [][]string
	waits := false
	for _, t := range r.Topics {
		oldest := ""
		if t.Oldest != nil {
			oldest = words.Duration(r.Age(t.Oldest))
		}
		state, why := words.TopicState(r, t)
		waits = waits || state != ""
		rows = append(rows, []string{words.OneLine(t.Topic), counted(t.Pending), oldest, counted(t.Failed), state, why})
	}
	more := 0
	if !all && len(rows) > maxTopics {
		more = len(rows) - maxTopics
		rows = rows[:maxTopics]
	}
	columns := "TOPIC~ PENDING OLDEST FAILED"
	if waits {
		columns += " STATE WHY~"
	} else {
		for i := range rows {
			rows[i] = rows[i][:4]
		}
	}
	if len(rows) > 0 {
		a.Say("")
		a.Table(columns, rows)
	}
	if more > 0 {
		a.Say("and %s more: millrace outbox status --shards", words.Count(more, "topic"))
	}
}

// statusRow prints the status of one of several databases.
func statusRow(a *cli.App, r *outboxadmin.Report) {
	oldest, running := "", 0
	if r.Oldest != nil {
		oldest = words.Duration(r.Age(r.Oldest))
	}
	for _, relay := range r.Relays {
		if relay.Alive {
			running++
		}
	}
	counts, _ := failedCounts(a, r)
	a.Table("PENDING OLDEST FAILED~ DELAYED RELAYS", [][]string{{r.Pending.String(), oldest, counts, r.Delayed.String(), strconv.Itoa(running)}})
}
