package pubsub_test

import (
	"testing"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
	"github.com/millrace-go/millrace/transport/transporttest"
)

func TestConformance(t *testing.T) {
	options := emulator(t)
	transporttest.Run(t, func(t testing.TB) transport.Transport {
		return connect(t, pubsub.Config{ClientOptions: options})
	}, transporttest.Config{})
}

// TestConformanceOfFake keeps Google's in-process fake usable for the tests of services.
func TestConformanceOfFake(t *testing.T) {
	_, options := fake(t)
	transporttest.Run(t, func(t testing.TB) transport.Transport {
		return connect(t, pubsub.Config{ClientOptions: options})
	}, transporttest.Config{Short: true})
}
