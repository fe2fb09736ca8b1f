// Package notrun skips tests that this machine cannot run, and notes them for scripts/test, which says at the end of a
// whole run what was not run and what it needs. "go test" alone hides the output of a package that passes.
package notrun

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// variable names the file that the notes are appended to. A test process reads it only when it has a note to make: the
// results of packages that ran in full stay in Go's cache.
const variable = "MILLRACE_NOT_RUN"

// Skip ends the test, which needs what this machine lacks: "Redis: install redis-server".
func Skip(t testing.TB, need string, reason error) {
	t.Helper()
	Note(t, need)
	t.Skipf("this test needs %s (%v)", need, reason)
}

// Note is for a test that goes on and asks less.
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

// note appends a line of the need, the test binary and the test. A test with several reasons, or several subtests, is one.
func note(file, need, test string) error {
	notes, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	test, _, _ = strings.Cut(test, "/")
	_, err = fmt.Fprintf(notes, "%s\t%s\t%s\n", need, os.Args[0], test)
	return errors.Join(err, notes.Close())
}
