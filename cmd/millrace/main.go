// Command millrace is the operator's command.
package main

import (
	"fmt"
	"io"
	"os"
)

const usage = `usage: millrace <command> [flags]

commands:
  dev    run PostgreSQL, Pub/Sub and Kafka on this machine, for a command or until Ctrl-C

"millrace <command> -h" tells a command's flags.
`

// Exit codes besides those of a command that "dev" runs.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, stdin *os.File, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	switch args[0] {
	case "dev":
		return dev(args[1:], stdin, stdout, stderr)
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
		return exitOK
	}
	fmt.Fprintf(stderr, "millrace: unknown command %q\n\n%s", args[0], usage)
	return exitUsage
}
