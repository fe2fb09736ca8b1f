package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/catalog"
	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/internal/words"
)

func catalogCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{
		Use: "catalog", Short: "Print what services publish and handle, and what a change breaks", Args: cobra.NoArgs, RunE: cli.NeedsCommand,
		Long: "Works on catalogs of services: AsyncAPI 3.0 documents, which a service serves at /catalog of its server for operators.",
	}
	c.AddCommand(catalogPrint(a), catalogDiff(a))
	return c
}

func catalogPrint(a *cli.App) *cobra.Command {
	return a.Prints(&cobra.Command{
		Use: "print FILE|URL", Short: "Print what a service publishes and handles", Args: cli.Argument,
		Long:    "Prints what a service publishes and handles: topics, types and versions. With -o json it prints the AsyncAPI document.",
		Example: "  millrace catalog print http://127.0.0.1:9090/catalog\n  millrace catalog print http://127.0.0.1:9090/catalog -o json > orders.json",
		RunE: func(c *cobra.Command, args []string) error {
			d, err := readCatalog(c.Context(), args[0])
			if err != nil {
				return err
			}
			if a.JSON {
				return a.PrintJSON(d)
			}
			var rows [][]string
			for _, name := range slices.Sorted(maps.Keys(d.Operations)) {
				o := d.Operations[name]
				for _, m := range d.MessagesOf(o) {
					rows = append(rows, []string{o.Action, d.ChannelOf(o).Address, m.Name, m.ContentType, o.Handler})
				}
			}
			a.Table("ACTION TOPIC EVENT CONTENT HANDLER", rows)
			return nil
		},
	})
}

func catalogDiff(a *cli.App) *cobra.Command {
	return a.Prints(&cobra.Command{
		Use: "diff OLD NEW [OTHER...]", Short: "Say what a change of a service breaks",
		Long: "Compares two catalogs of a service, each a file or a URL, and says what the change breaks, and whom. With catalogs of OTHER\n" +
			"services it names their handlers, and a change that no handler notices breaks nothing. But another mode of\n" +
			"CloudEvents breaks consumers outside Millrace, which have no catalog. The exit code is 1 if something breaks.",
		Example: "  millrace catalog diff http://127.0.0.1:9090/catalog new.json billing.json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return errors.New("want two catalogs, OLD and NEW")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			var all []*catalog.Document
			for _, from := range args {
				d, err := readCatalog(c.Context(), from)
				if err != nil {
					return err
				}
				all = append(all, d)
			}
			return sayChanges(a, catalog.Diff(all[0], all[1], all[2:]...))
		},
	})
}

func sayChanges(a *cli.App, changes []catalog.Change) error {
	breaks := slices.ContainsFunc(changes, func(c catalog.Change) bool { return len(c.Breaks) > 0 })
	switch {
	case a.JSON:
		if err := a.PrintJSON(append([]catalog.Change{}, changes...)); err != nil {
			return err
		}
	case len(changes) == 0:
		a.Say("Nothing has changed.")
	default:
		var rows [][]string
		for _, c := range changes {
			rows = append(rows, []string{words.OneLine(c.What), words.OneLine(strings.Join(c.Breaks, ", "))})
		}
		a.Table("CHANGE BREAKS", rows)
	}
	if breaks {
		return cli.ExitStatus(cli.ExitFailed)
	}
	return nil
}

// maxCatalog bounds the size of a catalog, in bytes.
const maxCatalog = 64 << 20

// readCatalog reads a catalog from a file or a URL.
func readCatalog(ctx context.Context, from string) (*catalog.Document, error) {
	text, err := contentOf(ctx, from)
	if err != nil {
		return nil, err
	}
	d, err := catalog.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	return d, nil
}

func contentOf(ctx context.Context, from string) ([]byte, error) {
	if !strings.HasPrefix(from, "http://") && !strings.HasPrefix(from, "https://") {
		return os.ReadFile(from)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxCatalog))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: want the path /catalog of the service's server for operators (admin.address)", from, res.Status)
	}
	return text, err
}
