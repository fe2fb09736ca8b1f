package main

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// asMillrace makes this test binary the command.
const asMillrace = "MILLRACE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asMillrace) != "" {
		os.Unsetenv(asMillrace)
		main()
	}
	devtest.Main(m,
		// Google's client looks for its end every 10 s only, and then ends.
		goleak.IgnoreTopFunction("cloud.google.com/go/pubsub/v2.(*messageIterator).streamKeepAliveHandler"),
		// sarama's metrics have one goroutine for the life of the process.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}
