package transporttest_test

import (
	"testing"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/memory"
	"github.com/millrace-go/millrace/transport/transporttest"
)

// The test of a transport of your own. Here it is the in-memory one, and all transports of a test must be on one broker.
func ExampleRun() {
	test := func(t *testing.T) { // for you: func TestConformance(t *testing.T)
		broker, err := memory.New(memory.Config{})
		if err != nil {
			t.Fatal(err)
		}
		transporttest.Run(t, func(t testing.TB) transport.Transport {
			connected := broker.Connect()
			t.Cleanup(func() { _ = connected.Close() })
			return connected
		}, transporttest.Config{})
	}
	_ = test
}
