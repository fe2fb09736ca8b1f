package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/internal/pgdays"
	"github.com/millrace-go/millrace/internal/tables"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
)

func retentionCommand(a *cli.App) *cobra.Command {
	c := a.Database(&cobra.Command{
		Use: "retention", Short: "Show and drop old records of events, effects and HTTP answers", Args: cobra.NoArgs, RunE: cli.NeedsCommand,
		Long: "Shows and drops old records of processed events, effects and HTTP answers, which are kept in one partition for each day.\n" +
			"Services whose role owns the tables do this themselves. Otherwise run \"retention run\" once a day as the owner.",
	})
	c.AddCommand(retentionRun(a), retentionStatus(a))
	return c
}

func retentionRun(a *cli.App) *cobra.Command {
	var claims, effects, httpKeys time.Duration
	c := &cobra.Command{
		Use: "run", Short: "Create partitions for the next days, and drop old ones", Args: cobra.NoArgs,
		Long: "Creates partitions for the next days, and drops those that are older than the durations of the flags. Without flags it\n" +
			"drops none. Use the durations that the services are configured with. A service that keeps its records for longer, and runs\n" +
			"or ran lately (\"retention status\"), counts more than a flag: nothing is dropped that it still needs. Keep claims for longer than brokers may redeliver: older events are not handled, because nobody knows whether they\n" +
			"were processed. It blocks nobody, and waits for running handlers.",
		Example: "  millrace retention run\n  millrace retention run --claims 14d --effects 30d --http-keys 1d",
	}
	cli.AgeVar(c, &claims, "claims", "keep records of processed events for this long (the services' default is 14d)")
	cli.AgeVar(c, &effects, "effects", "keep effects for this long (the services' default is 30d)")
	cli.AgeVar(c, &httpKeys, "http-keys", "keep answers to HTTP requests for this long (the services' default is 1d)")
	run := a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		done := map[string]any{}
		var lines [][]string
		var errs []error
		for _, part := range []struct {
			name string
			keep time.Duration
			run  func() (any, []string, string, error)
		}{
			{"claims", claims, func() (any, []string, string, error) {
				r, err := claim.Retain(ctx, pool, a.Schema, claims)
				more := words.Count(r.Hashed, "record") + " without a date deleted"
				if !r.Floor.IsZero() {
					more += "; the retention watermark is " + r.Floor.UTC().Format(time.DateOnly) + ": older events are not handled"
				}
				return r, r.Days, more, err
			}},
			{"effects", effects, func() (any, []string, string, error) {
				r, err := effect.Retain(ctx, pool, a.Schema, effects)
				return r, r.Days, words.Count(r.Moved, "open effect") + " kept", err
			}},
			{"http_keys", httpKeys, func() (any, []string, string, error) {
				r, err := idempotencykey.Retain(ctx, pool, a.Schema, httpKeys)
				return r, r.Days, "", err
			}},
		} {
			if part.keep == 0 {
				continue
			}
			a.Progress.Say("Dropping old partitions: " + part.name)
			result, days, more, err := part.run()
			if err != nil {
				errs = append(errs, fmt.Errorf("--%s: %w", strings.ReplaceAll(part.name, "_", "-"), err))
			} else if longest, err := longestRetention(ctx, pool, a.Schema, part.name); err != nil {
				errs = append(errs, err)
			} else {
				if longest.Keep > part.keep {
					more = strings.TrimPrefix(more+"; ", "; ") + "service " + words.OneLine(longest.Service) + " keeps them for " + words.Duration(longest.Keep)
				}
				done[part.name] = result
				lines = append(lines, []string{part.name, strings.Join(days, " "), more})
			}
		}
		if a.JSON && len(done) > 0 {
			errs = append(errs, a.PrintJSON(done))
		} else if len(lines) > 0 {
			a.Table("RECORDS DROPPED~ RESULT~", lines)
		}
		return errors.Join(errs...)
	})
	ahead := a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error { return retentionAhead(ctx, a, pool) })
	c.RunE = func(c *cobra.Command, args []string) error {
		if claims == 0 && effects == 0 && httpKeys == 0 {
			return ahead(c, args)
		}
		return run(c, args)
	}
	return a.Prints(c)
}

// retentionAhead creates days and drops none.
func retentionAhead(ctx context.Context, a *cli.App, pool *pgxpool.Pool) error {
	there, err := tables.Installed(ctx, pool, a.Schema)
	if err != nil {
		return err
	}
	made := []string{}
	for _, k := range tables.Kept {
		if there[k.Component] {
			err = errors.Join(err, pgdays.Table{Schema: a.Schema, Name: k.Table}.Ahead(ctx, pool))
			made = append(made, k.Of)
		}
	}
	switch {
	case err != nil:
		return err
	case len(made) == 0:
		return fmt.Errorf("schema %q has no tables with records: run \"millrace migrate up\"", a.Schema)
	case a.JSON:
		return a.PrintJSON(map[string]any{"ahead": made})
	}
	a.Say("Partitions for the next week exist: %s. None was dropped, because no duration was given.", strings.Join(made, ", "))
	return nil
}

// longestRetention returns the longest retention of the services, of records that have this name; zero if none counts.
func longestRetention(ctx context.Context, pool *pgxpool.Pool, schema, of string) (longest pgdays.Retention, err error) {
	for _, k := range tables.Kept {
		if k.Of != of {
			continue
		}
		all, err := pgdays.Table{Schema: schema, Name: k.Table}.Retentions(ctx, pool)
		if err != nil || len(all) == 0 {
			return longest, err
		}
		longest = all[0]
	}
	return longest, nil
}

// serviceRetention is how long a service keeps its records.
type serviceRetention struct {
	Of        string    `json:"of"`
	Service   string    `json:"service"`
	Keep      string    `json:"keep"` // such as 336h0m0s
	RenewedAt time.Time `json:"renewed_at"`
}

// keptDays is the status of one table.
type keptDays struct {
	Of     string     `json:"of"`
	Days   int        `json:"days"`
	Oldest *time.Time `json:"oldest"` // the first day, if there is one; of claims, the last day of what is before the days
	Newest *time.Time `json:"newest"`
	Rows   int64      `json:"rows"` // an estimate
	Bytes  int64      `json:"bytes"`
}

func retentionStatus(a *cli.App) *cobra.Command {
	c := &cobra.Command{Use: "status", Short: "Show partitions, sizes, services' retentions, and watermarks", Args: cobra.NoArgs, Example: "  millrace retention status"}
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		var all []keptDays
		retentions := []serviceRetention{}
		there, err := tables.Installed(ctx, pool, a.Schema)
		if err != nil {
			return err
		}
		for _, of := range tables.Kept {
			days, err := pgdays.Table{Schema: a.Schema, Name: of.Table}.Days(ctx, pool)
			if err != nil {
				return err
			}
			k := keptDays{Of: of.Of, Days: len(days)}
			for i, d := range days {
				if i == 0 {
					k.Oldest = &days[0].Date
				}
				k.Newest = &days[i].Date
				k.Rows += d.Rows
				k.Bytes += d.Bytes
			}
			all = append(all, k)
			if !there[of.Component] {
				continue
			}
			noted, err := pgdays.Table{Schema: a.Schema, Name: of.Table}.Retentions(ctx, pool)
			if err != nil {
				return err
			}
			for _, r := range noted {
				retentions = append(retentions, serviceRetention{of.Of, r.Service, r.Keep.String(), r.RenewedAt})
			}
		}
		kept, err := claim.InspectKept(ctx, pool, a.Schema)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(map[string]any{"tables": all, "claims": kept, "retentions": retentions})
		}
		date := func(t *time.Time) string {
			if t == nil {
				return ""
			}
			return t.UTC().Format(time.DateOnly)
		}
		var lines [][]string
		for _, k := range all {
			lines = append(lines, []string{
				k.Of, strconv.Itoa(k.Days), date(k.Oldest), date(k.Newest), strconv.FormatInt(k.Rows, 10), fmt.Sprintf("%.1f MB", float64(k.Bytes)/1e6),
			})
		}
		a.Table("RECORDS DAYS OLDEST NEWEST ROWS SIZE", lines)
		if len(retentions) > 0 {
			a.Say("")
			lines = nil
			for _, r := range retentions {
				lines = append(lines, []string{words.OneLine(r.Service), r.Of, r.Keep, r.RenewedAt.UTC().Format(time.DateTime)})
			}
			a.Table("SERVICE~ RECORDS KEEP RENEWED", lines)
		}
		a.Say("\nclaims without a date: %d", kept.Hashed)
		if len(kept.Consumers) == 0 {
			return nil
		}
		a.Say("")
		lines = nil
		for _, consumer := range kept.Consumers {
			lines = append(lines, []string{words.OneLine(consumer.Name), date(consumer.Floor)})
		}
		a.Table("CONSUMER~ WATERMARK", lines)
		return nil
	})
	return a.Prints(c)
}
