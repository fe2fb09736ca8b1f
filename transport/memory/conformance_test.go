package memory_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/memory"
	"github.com/millrace-go/millrace/transport/transporttest"
)

func TestConformance(t *testing.T) {
	broker, err := memory.New(memory.Config{DrainTimeout: 5 * time.Second})
	require.NoError(t, err)
	transporttest.Run(t, func(t testing.TB) transport.Transport {
		m := broker.Connect()
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		return m
	}, transporttest.Config{})
}
