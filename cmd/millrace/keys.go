package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
)

func keysCommand(a *cli.App) *cobra.Command {
	c := a.Database(&cobra.Command{
		Use: "keys", Short: "List, show and forget answers that are stored by Idempotency-Key", Args: cobra.NoArgs, RunE: cli.NeedsCommand,
		Long: "Lists, shows and forgets the answers to HTTP requests that services store by Idempotency-Key. A key belongs to a service and\n" +
			"a scope, such as an account, of which only a hash is stored.",
	})
	c.AddCommand(keysList(a), keysShow(a), keysForget(a))
	return c
}

func keysList(a *cli.App) *cobra.Command {
	var l idempotencykey.Listing
	c := &cobra.Command{
		Use: "list", Short: "List stored answers, the latest first", Args: cobra.NoArgs,
		Example: "  millrace keys list\n  millrace keys list --service shop --scope acct-1",
	}
	c.Flags().StringVar(&l.Service, "service", "", "only answers of this service")
	c.Flags().StringVar(&l.Scope, "scope", "", "only answers of this scope, as the service's Config.Scope returns it")
	cli.LimitVar(c, &l.Limit)
	c.PreRunE = func(*cobra.Command, []string) error { return cli.CheckLimit(l.Limit) }
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, _ []string) error {
		found, err := idempotencykey.List(ctx, pool, a.Schema, l)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(append([]idempotencykey.Entry{}, found...))
		}
		if len(found) == 0 {
			a.Say("No such keys.")
			return nil
		}
		keysTable(a, found)
		return nil
	})
	return a.Prints(c)
}

// shortKeyID is how many digits of an answer's ID a table shows: more than Show needs.
const shortKeyID = 12

func keysTable(a *cli.App, found []idempotencykey.Entry) {
	var rows [][]string
	for _, e := range found {
		rows = append(rows, []string{
			e.ID[:shortKeyID], e.Service, e.Scope, words.OneLine(e.Key), words.OneLine(e.Request), e.State, strconv.Itoa(e.Status), words.Duration(time.Since(e.Created)),
		})
	}
	a.Table("ID SERVICE SCOPE? KEY~ REQUEST~ STATE STATUS AGE", rows)
}

// oneKey returns the answer that the argument identifies.
func oneKey(ctx context.Context, a *cli.App, pool *pgxpool.Pool, key string) (idempotencykey.Entry, error) {
	found, err := idempotencykey.Show(ctx, pool, a.Schema, key)
	switch {
	case err != nil:
		return idempotencykey.Entry{}, err
	case len(found) == 0:
		return idempotencykey.Entry{}, fmt.Errorf("key %s: %w", words.OneLine(key), idempotencykey.ErrNoSuchKey)
	case len(found) > 1:
		if !a.JSON {
			keysTable(a, found)
		}
		return idempotencykey.Entry{}, cli.Misuse(errors.New("the key was sent to several services or by several callers: name one by its ID"))
	}
	return found[0], nil
}

func keysShow(a *cli.App) *cobra.Command {
	c := &cobra.Command{
		Use: "show {KEY | ID}", Short: "Show a stored answer", Args: cli.Argument, ValidArgsFunction: cobra.NoFileCompletions,
		Example: "  millrace keys show 8e03978e-40d5-43e8-bc93-6894a57f9324\n  millrace keys show aa5bf3f2dc9e",
	}
	c.RunE = a.Connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) error {
		e, err := oneKey(ctx, a, pool, args[0])
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(e)
		}
		a.Say("id       %s\nservice  %s\nscope    %s\nkey      %s\nrequest  %s\nstate    %s, status %d\nstored   %s, %s ago", e.ID, e.Service, e.Scope,
			words.OneLine(e.Key), words.OneLine(e.Request), e.State, e.Status, e.Created.UTC().Format(time.RFC3339), words.Duration(time.Since(e.Created)))
		for _, name := range slices.Sorted(maps.Keys(e.Header)) {
			for _, value := range e.Header[name] {
				a.Say("header   %s: %s", words.OneLine(name), words.OneLine(value))
			}
		}
		a.Say("body     %s\n%s", words.Count(e.Bytes, "byte"), words.OneLine(string(e.Body)))
		return nil
	})
	return a.Prints(c)
}

func keysForget(a *cli.App) *cobra.Command {
	var by idempotencykey.By
	c := &cobra.Command{
		Use: "forget {KEY | ID}", Short: "Forget a stored answer, so that a repeated request is executed", Args: cli.Argument, ValidArgsFunction: cobra.NoFileCompletions,
		Long: "Forgets a stored answer. A request that is repeated with its key is executed again, also if the first one's writes are\n" +
			"committed: undo those first, unless the answer is a rejection. Each action is kept in the table idempotency_key_audit.",
		Example: "  millrace keys forget 8e03978e-40d5-43e8-bc93-6894a57f9324 --note \"the 422 was our mistake\"",
	}
	cli.AuditVar(c, &by.Actor, &by.Note)
	connected := a.Connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) error {
		e, err := oneKey(ctx, a, pool, args[0])
		if err != nil {
			return err
		}
		if e, err = idempotencykey.Forget(ctx, pool, a.Schema, e.ID, by); err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(map[string]string{"forgotten": e.ID})
		}
		a.Say("The answer %d to %s with the key %s was forgotten.", e.Status, words.OneLine(e.Request), words.OneLine(e.Key))
		return nil
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		if by.Actor == "" {
			return cli.Misuse(errors.New("--actor is empty: want the name of who does it"))
		}
		return connected(c, args)
	}
	return a.Prints(c)
}
