package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/docs"
	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// drivers are all there are.
var drivers = []transport.Driver{kafka.Driver, transport.MemoryDriver, pubsub.Driver}

func (a *app) config() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "A service's configuration", Args: cobra.NoArgs, RunE: needsCommand}
	c.AddCommand(
		a.prints(&cobra.Command{
			Use: "check FILE", Short: "Tell everything that is wrong with a configuration, with MILLRACE_* variables on top of it",
			Long: "Tells everything that is wrong with a configuration, with MILLRACE_* variables on top of it. It connects to nothing.\n" +
				"The exit code is 0 when nothing is wrong, else 1.",
			Args: cobra.ExactArgs(1),
			RunE: func(_ *cobra.Command, args []string) error { return a.configCheck(args[0]) },
		}),
		a.prints(&cobra.Command{
			Use: "print FILE", Short: "Print a configuration as it takes effect: defaults and MILLRACE_* variables included, secrets hidden",
			Args: cobra.ExactArgs(1),
			RunE: func(_ *cobra.Command, args []string) error { return a.configPrint(args[0]) },
		}),
		a.prints(&cobra.Command{
			Use: "schema", Short: "Print the JSON schema of configurations, for editors",
			Long: "Prints the JSON schema of configurations, as JSON in any case. Editors complete and check a file that begins with\n\n" +
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
			fmt.Fprintln(a.stdout, lines(problem))
		}
	}
	if len(problems) > 0 {
		return exitStatus(exitFailed)
	}
	if !a.json {
		fmt.Fprintf(a.stdout, "%s: nothing is wrong\n", path)
	}
	return nil
}

func (a *app) configPrint(path string) error {
	cfg, err := framework.Load(path, drivers...)
	if err != nil {
		return err
	}
	if a.json {
		b, err := cfg.JSON(drivers...)
		if err != nil {
			return err
		}
		return a.printJSON(json.RawMessage(b))
	}
	b, err := cfg.YAML(drivers...)
	if err != nil {
		return err
	}
	_, err = a.stdout.Write(b)
	return err
}
