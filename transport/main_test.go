package transport_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

func TestMain(m *testing.M) {
	devtest.Main(m,
		// sarama's metrics keep one goroutine until the process ends, and Google's client leaks one goroutine of each stream.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
		goleak.IgnoreTopFunction("cloud.google.com/go/pubsub/v2.(*messageIterator).streamKeepAliveHandler"))
}
