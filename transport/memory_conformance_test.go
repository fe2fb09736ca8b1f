package transport_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/transporttest"
)

func TestMemoryConformance(t *testing.T) {
	memory, err := transport.NewMemory(transport.MemoryConfig{DrainTimeout: 5 * time.Second})
	require.NoError(t, err)
	transporttest.Run(t, func(t testing.TB) transport.Transport {
		m := memory.Connect()
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		return m
	}, transporttest.Config{})
}
