package devtest

import (
	"errors"
	"flag"
	"testing"

	"github.com/millrace-go/millrace/internal/notrun"
)

// Long skips a test that takes more than five seconds of processor time, unless -run says what to run: "go test ./..." shall end within
// minutes. ".ci/run" finds the tests that call it and runs them all, so call it in the test, not in a function that the test calls.
func Long(t testing.TB) {
	t.Helper()
	if run := flag.Lookup("test.run"); run == nil || run.Value.String() == "" {
		notrun.Skip(t, `to be named by -run, because it takes long; "go test -run . ./..." runs all`, errors.New("there is no -run"))
	}
}
