package main

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// echo answers each request with itself, over a connection that is that far away.
func echo(t *testing.T, roundTrip time.Duration) net.Conn {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.Copy(conn, conn)
	}()
	conn, err := delayedDial(roundTrip)(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() {
		conn.Close()
		listener.Close()
		<-done
	})
	return conn
}

// A turn takes the round trip, and on the quickest of many little more: a timer that rounds up to whole milliseconds
// would double the network.
func TestDelayedTurn(t *testing.T) {
	t.Parallel()
	const roundTrip = 500 * time.Microsecond
	conn := echo(t, roundTrip)
	quickest := time.Hour
	for range 200 {
		began := time.Now()
		_, err := conn.Write([]byte("ping"))
		require.NoError(t, err)
		_, err = io.ReadFull(conn, make([]byte, 4))
		require.NoError(t, err)
		quickest = min(quickest, time.Since(began))
	}
	assert.GreaterOrEqual(t, quickest, roundTrip)
	assert.Less(t, quickest, 2*roundTrip)
}

// Requests that are sent without waiting share one delay.
func TestDelayedPipeline(t *testing.T) {
	t.Parallel()
	const roundTrip = 200 * time.Millisecond
	conn := echo(t, roundTrip)
	pace := time.NewTicker(5 * time.Millisecond) // so that each arrives by itself
	defer pace.Stop()
	began := time.Now()
	for range 10 {
		_, err := conn.Write([]byte("ping"))
		require.NoError(t, err)
		<-pace.C
	}
	_, err := io.ReadFull(conn, make([]byte, 40))
	require.NoError(t, err)
	assert.GreaterOrEqual(t, time.Since(began), roundTrip)
	assert.Less(t, time.Since(began), 5*roundTrip)
}

func TestDelayedConnEnds(t *testing.T) {
	t.Parallel()
	conn := echo(t, time.Millisecond)
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Millisecond)))
	_, err := conn.Read(make([]byte, 1))
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	assert.True(t, timeout.Timeout())
	require.NoError(t, conn.Close())
	_, err = conn.Read(make([]byte, 1))
	assert.Error(t, err)
	assert.ErrorIs(t, conn.Close(), net.ErrClosed)
}
