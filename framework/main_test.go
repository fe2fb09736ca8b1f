package framework_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/role"
)

func TestMain(m *testing.M) {
	switch role.Name() {
	case signalled:
		os.Exit(role.Play(playSignalled))
	case deployed:
		os.Exit(role.Play(playDeployed))
	case migrating:
		os.Exit(role.Play(playMigrating))
	case copying:
		os.Exit(role.Play(playCopying))
	case rolled:
		os.Exit(role.Play(playRolled))
	}
	devtest.AtOnce(3)
	devtest.Main(m,
		goleak.IgnoreTopFunction("cloud.google.com/go/pubsub/v2.(*messageIterator).streamKeepAliveHandler"),            // looks for its end every 10 s only, and then ends
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),                                // sarama's, one for the process
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/message.(*Router).watchAllHandlersStopped.func1"), // of a router that could not run, for ever
	)
}
