package kafka_test

import (
	"testing"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/transporttest"
)

func TestConformance(t *testing.T) {
	addresses := brokers(t)
	transporttest.Run(t, func(t testing.TB) transport.Transport {
		return connect(t, kafka.Config{Brokers: addresses})
	}, transporttest.Config{})
}

// TestConformanceOfFake keeps the in-process fake usable for the tests of services.
func TestConformanceOfFake(t *testing.T) {
	addresses := fake(t).ListenAddrs()
	transporttest.Run(t, func(t testing.TB) transport.Transport {
		return connect(t, kafka.Config{Brokers: addresses})
	}, transporttest.Config{})
}
