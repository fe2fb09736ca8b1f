package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/cmd/millrace/internal/output"
	"github.com/millrace-go/millrace/docs"
	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/internal/pgdsn"
)

func configCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Check and print the configuration of a service", Args: cobra.NoArgs, RunE: cli.NeedsCommand}
	c.AddCommand(
		a.Prints(&cobra.Command{
			Use: "check FILE", Short: "Report all errors of a configuration",
			Long: "Reports all errors of a configuration and of the MILLRACE_* variables, which win over it. It connects to nothing.\n" +
				"The exit code is 0 without errors, and 1 with errors.",
			Example: "  millrace config check millrace.yaml",
			Args:    cli.Argument,
			RunE:    func(_ *cobra.Command, args []string) error { return configCheck(a, args[0]) },
		}),
		a.Prints(&cobra.Command{
			Use: "print FILE", Short: "Print the configuration that takes effect, without secrets",
			Long: "Prints the configuration that takes effect: FILE with all defaults, and with the environment, which wins over it. Secrets\n" +
				"are hidden; a comment says which database is meant.",
			Example: "  millrace config print millrace.yaml\n  millrace config print millrace.yaml -o json",
			Args:    cli.Argument,
			RunE:    func(_ *cobra.Command, args []string) error { return configPrint(a, args[0]) },
		}),
		a.Prints(&cobra.Command{
			Use: "schema", Short: "Print the JSON schema of configurations, for editors", Example: "  millrace config schema > millrace.schema.json",
			Long: "Prints the JSON schema of configurations, whatever -o says. Editors complete and check a file that begins with\n\n" +
				"  # yaml-language-server: $schema=millrace.schema.json",
			Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error { _, err := a.Stdout.Write(docs.Schema); return err },
		}),
	)
	return c
}

func configCheck(a *cli.App, path string) error {
	_, err := framework.Load(path, cli.Drivers...)
	var wrong *framework.ConfigError
	if err != nil && !errors.As(err, &wrong) {
		return err
	}
	problems := []string{}
	if wrong != nil {
		problems = wrong.Problems
	}
	if a.JSON {
		if err := a.PrintJSON(map[string]any{"file": path, "problems": problems}); err != nil {
			return err
		}
	} else {
		for _, problem := range problems {
			fmt.Fprintln(a.Stdout, output.Lines(problem))
		}
	}
	if len(problems) > 0 {
		return cli.ExitStatus(cli.ExitFailed)
	}
	if !a.JSON {
		a.Say("%s: %s", cmp.Or(path, "the environment"), a.Terminal.Green("no errors"))
	}
	return nil
}

func configPrint(a *cli.App, path string) error {
	cfg, err := framework.Load(path, cli.Drivers...)
	if err != nil {
		return err
	}
	if a.JSON {
		return a.PrintJSON(cfg)
	}
	b, err := cfg.YAML()
	if err != nil {
		return err
	}
	if cfg.Postgres.Disabled {
		a.Say("# no database")
		_, err = a.Stdout.Write(b)
		return err
	}
	database, err := pgdsn.Parse(cfg.Postgres.DSN)
	if err != nil {
		return fmt.Errorf("postgres.dsn is %w", err)
	}
	c := database.ConnConfig
	a.Say("# database %s at %s:%d, as user %s", cmp.Or(c.Database, c.User), c.Host, c.Port, c.User)
	_, err = a.Stdout.Write(b)
	return err
}
