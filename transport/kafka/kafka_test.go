package kafka_test

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/quietport"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

func TestNewAndClose(t *testing.T) {
	t.Parallel()
	tr := connect(t, kafka.Config{Brokers: brokers(t)})
	require.Equal(t, "kafka", tr.Name())
	require.NoError(t, tr.Close())
	require.NoError(t, tr.Close())
	_, err := tr.Publisher()
	require.ErrorIs(t, err, transport.ErrClosed)
	_, err = tr.Subscriber(transport.SubscriberConfig{Consumer: "c"})
	require.ErrorIs(t, err, transport.ErrClosed)
}

// One broker that answers is enough; none is an error that names each.
func TestNewWithoutBroker(t *testing.T) {
	t.Parallel()
	nobody, err := quietport.Address(t.Context())
	require.NoError(t, err)

	connect(t, kafka.Config{Brokers: append([]string{nobody}, brokers(t)...)})
	_, err = kafka.New(t.Context(), kafka.Config{Brokers: []string{nobody}})
	require.ErrorContains(t, err, nobody)
}

// A peer that accepts and keeps silent does not hold up New beyond its context.
func TestNewEndsWithItsContext(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, silent.Close()) })
	ctx, cancel := context.WithCancel(t.Context())
	accepted := make(chan net.Conn)
	go func() {
		conn, _ := silent.Accept()
		accepted <- conn
	}()
	done := make(chan error)
	go func() {
		_, err := kafka.New(ctx, kafka.Config{Brokers: []string{silent.Addr().String()}})
		done <- err
	}()
	conn := <-accepted
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.NoError(t, conn.Close())
}
