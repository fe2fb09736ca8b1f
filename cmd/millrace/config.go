package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/output"
	"github.com/millrace-go/millrace/docs"
	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/internal/pgdsn"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// drivers are all there are.
var drivers = []transport.Driver{kafka.Driver, transport.MemoryDriver, pubsub.Driver}

func (a *app) config() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Check and print the configuration of a service", Args: cobra.NoArgs, RunE: needsCommand}
	c.AddCommand(
		a.prints(&cobra.Command{
			Use: "check FILE", Short: "Report all errors of a configuration",
			Long: "Reports all errors of a configuration and of the MILLRACE_* variables, which win over it. It connects to nothing.\n" +
				"The exit code is 0 without errors, and 1 with errors.",
			Example: "  millrace config check millrace.yaml",
			Args:    argument,
			RunE:    func(_ *cobra.Command, args []string) error { return a.configCheck(args[0]) },
		}),
		a.prints(&cobra.Command{
			Use: "print FILE", Short: "Print the configuration that takes effect, without secrets",
			Long: "Prints the configuration that takes effect: FILE with all defaults, and with the environment, which wins over it. Secrets\n" +
				"are hidden; a comment says which database is meant.",
			Example: "  millrace config print millrace.yaml\n  millrace config print millrace.yaml -o json",
			Args:    argument,
			RunE:    func(_ *cobra.Command, args []string) error { return a.configPrint(args[0]) },
		}),
		a.prints(&cobra.Command{
			Use: "schema", Short: "Print the JSON schema of configurations, for editors", Example: "  millrace config schema > millrace.schema.json",
			Long: "Prints the JSON schema of configurations, whatever -o says. Editors complete and check a file that begins with\n\n" +
				"  # yaml-language-server: $schema=millrace.schema.json",
			Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error { _, err := a.stdout.Write(docs.Schema); return err },
		}),
	)
	return c
}

func (a *app) configCheck(path string) error {
	_, err := framework.Load(path, drivers...)
	var wrong *framework.ConfigError
	if err != nil && !errors.As(err, &wrong) {
		return err
	}
	problems := []string{}
	if wrong != nil {
		problems = wrong.Problems
	}
	if a.json {
		if err := a.printJSON(map[string]any{"file": path, "problems": problems}); err != nil {
			return err
		}
	} else {
		for _, problem := range problems {
			fmt.Fprintln(a.stdout, output.Lines(problem))
		}
	}
	if len(problems) > 0 {
		return exitStatus(exitFailed)
	}
	if !a.json {
		a.say("%s: %s", cmp.Or(path, "the environment"), a.terminal.Green("no errors"))
	}
	return nil
}

func (a *app) configPrint(path string) error {
	cfg, err := framework.Load(path, drivers...)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(cfg)
	}
	b, err := cfg.YAML()
	if err != nil {
		return err
	}
	database, err := pgdsn.Parse(cfg.Postgres.DSN)
	if err != nil {
		return fmt.Errorf("postgres.dsn is %w", err)
	}
	c := database.ConnConfig
	a.say("# database %s at %s:%d, as user %s", cmp.Or(c.Database, c.User), c.Host, c.Port, c.User)
	_, err = a.stdout.Write(b)
	return err
}
