package devtest

import (
	"context"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// echo answers every connection with what it sends.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return listener.Addr().String()
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Address())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_, err := c.Write([]byte(text))
	require.NoError(t, err)
}

func receive(c net.Conn, n int, wait time.Duration) (string, error) {
	_ = c.SetReadDeadline(time.Now().Add(wait))
	b := make([]byte, n)
	got, err := io.ReadFull(c, b)
	return string(b[:got]), err
}

func answers(t *testing.T, c net.Conn, text string) {
	t.Helper()
	got, err := receive(c, len(text), 5*time.Second)
	require.NoError(t, err)
	require.Equal(t, text, got)
}

func silent(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := receive(c, 1, 100*time.Millisecond)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestProxyFaults(t *testing.T) {
	p := NewProxy(t, echo(t))
	c := dial(t, p)
	send(t, c, "passes")
	answers(t, c, "passes")

	p.Freeze()
	send(t, c, "waits")
	silent(t, c)
	p.Thaw()
	answers(t, c, "waits")

	p.Strand()
	send(t, c, "vanishes")
	silent(t, c)
	c = dial(t, p)
	send(t, c, "a new one passes")
	answers(t, c, "a new one passes")

	p.Delay(150 * time.Millisecond)
	sent := time.Now()
	send(t, c, "late")
	answers(t, c, "late")
	assert.GreaterOrEqual(t, time.Since(sent), 300*time.Millisecond)
	p.Delay(0)

	p.Reset()
	_, err := receive(c, 1, 5*time.Second)
	require.ErrorIs(t, err, syscall.ECONNRESET)

	p.Refuse()
	_, err = (&net.Dialer{}).DialContext(context.Background(), "tcp", p.Address())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NoError(t, p.Accept())
	c = dial(t, p)
	send(t, c, "up again")
	answers(t, c, "up again")
	require.Equal(t, 3, p.Opened())
}
