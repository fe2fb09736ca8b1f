package main

import (
	"os"
	"testing"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// asMillrace makes this test binary the command.
const asMillrace = "MILLRACE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asMillrace) != "" {
		os.Unsetenv(asMillrace)
		main()
	}
	devtest.Main(m)
}
