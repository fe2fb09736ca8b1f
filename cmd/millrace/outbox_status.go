package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/outbox"
)

func (a *app) outboxStatus() *cobra.Command {
	c := &cobra.Command{Use: "status", Short: "What is unpublished, what failed, and who relays it", Args: cobra.NoArgs}
	c.RunE = a.connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		r, err := outbox.Inspect(ctx, pool, a.schema)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(r)
		}
		a.printReport(r)
		return nil
	})
	return a.prints(c)
}

func (a *app) printReport(r *outbox.Report) {
	fmt.Fprintf(a.stdout, "pending  %v", r.Pending)
	if r.Oldest != nil {
		fmt.Fprintf(a.stdout, ", the oldest %s old", ago(r.Age(r.Oldest)))
	}
	fmt.Fprintf(a.stdout, "\nfailed   %v parked, %v to be retried, %v queued behind those, %v dead\n",
		r.Failed["parked"], r.Failed["retry"], r.Failed["queued"], r.Failed["dead"])
	fmt.Fprintf(a.stdout, "delayed  %v", r.Delayed)
	if r.NextDue != nil {
		fmt.Fprintf(a.stdout, ", the next due at %s", r.NextDue.Format("2006-01-02 15:04:05 MST"))
	}
	alive := 0
	for _, relay := range r.Relays {
		if relay.Alive {
			alive++
		}
	}
	fmt.Fprintf(a.stdout, "\nrelays   %d alive\n", alive)
	if alive == 0 {
		fmt.Fprintln(a.stdout, `no relay runs: "millrace relay", or one in a service, publishes what is pending`)
	}

	if len(r.Relays) > 0 {
		fmt.Fprintln(a.stdout)
		var lines [][]string
		for _, relay := range r.Relays {
			state := "alive"
			if !relay.Alive {
				state = "gone"
			}
			lines = append(lines, []string{relay.Name, relay.ID, state, strconv.Itoa(relay.Shards)})
		}
		a.table("RELAY ID STATE SHARDS", lines)
	}
	fmt.Fprintln(a.stdout)
	var shards [][]string
	for _, s := range r.Shards {
		oldest, lease := "", "free"
		if s.Oldest != nil {
			oldest = ago(r.Age(s.Oldest))
		}
		if s.Held {
			lease = ago(s.Expires.Sub(r.At))
		} else if s.Relay != "" {
			lease = "expired"
		}
		var trouble []string
		if s.Strikes > 0 {
			trouble = append(trouble, fmt.Sprintf("%d unclean takeovers", s.Strikes))
		}
		if s.Suspect != "" {
			trouble = append(trouble, fmt.Sprintf("suspect %s, %d attempts", s.Suspect, s.Attempts))
		}
		shards = append(shards, []string{strconv.Itoa(s.Shard), s.Pending.String(), oldest, s.Relay, lease, strings.Join(trouble, "; ")})
	}
	a.table("SHARD PENDING OLDEST RELAY LEASE TROUBLE", shards)
	if len(r.Topics) > 0 {
		fmt.Fprintln(a.stdout)
		var topics [][]string
		for _, t := range r.Topics {
			oldest := ""
			if t.Oldest != nil {
				oldest = ago(r.Age(t.Oldest))
			}
			topics = append(topics, []string{oneLine(t.Topic), strconv.FormatInt(t.Pending, 10), oldest, strconv.FormatInt(t.Failed, 10)})
		}
		a.table("TOPIC PENDING OLDEST FAILED", topics)
	}
}
