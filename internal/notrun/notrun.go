// Package notrun skips tests that this machine cannot run, and records them for scripts/test, which reports at the end of a whole run
// what was not run and what it needs. "go test" alone hides the output of a passing package.
package notrun

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// variable names the file for the records. A test process reads the variable only when it has something to record, so that the results of
// packages that ran in full stay in Go's cache.
const variable = "MILLRACE_NOT_RUN"

// Skip ends the test, which needs what this machine lacks: "Redis: install redis-server".
func Skip(t testing.TB, need string, reason error) {
	t.Helper()
	Note(t, need)
	t.Skipf("this test needs %s (%v)", need, reason)
}

// Note is for a test that continues and checks less.
func Note(t testing.TB, need string) {
	t.Helper()
	file := os.Getenv(variable)
	if file == "" {
		return
	}
	if err := note(file, need, t.Name()); err != nil {
		t.Fatalf("note what was not run in the file that %s names: %v", variable, err)
	}
}

// note appends a line with the need, the test binary and the top-level test.
func note(file, need, test string) error {
	notes, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	test, _, _ = strings.Cut(test, "/")
	_, err = fmt.Fprintf(notes, "%s\t%s\t%s\n", need, os.Args[0], test)
	return errors.Join(err, notes.Close())
}
