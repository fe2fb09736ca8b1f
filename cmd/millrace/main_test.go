package main

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// asMillrace makes this test binary the command.
const asMillrace = "MILLRACE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asMillrace) != "" {
		os.Unsetenv(asMillrace)
		main()
	}
	before := goleak.IgnoreCurrent() // OpenCensus, which Google's client imports, starts a goroutine in an init
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(before); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
