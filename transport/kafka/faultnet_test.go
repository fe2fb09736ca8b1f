package kafka_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-go/millrace/transport/kafka"
)

// fate is what a faultNet does to one request.
type fate int

const (
	pass          fate = iota
	loseAnswer         // the broker has it, and the connection breaks before the answer
	loseRequest        // the connection breaks in the middle of it
	delayRequest       // it is on its way, and the read timeout is over; release sends it
	delayedAnswer      // the broker has it, and the read timeout is over
)

// faultNet is the network of a transport: it decides about each produce request. It is safe for concurrent use.
type faultNet struct {
	decide func(n int) fate // of the n-th request, from 0

	mu      sync.Mutex
	n       int
	down    bool
	conns   map[*faultConn]struct{}
	delayed []delayedRequest
}

type delayedRequest struct {
	address string
	bytes   []byte
}

// newFaultNet returns a network, and the configuration to use it.
func newFaultNet(decide func(n int) fate, brokers []string) (*faultNet, kafka.Config) {
	f := &faultNet{decide: decide, conns: map[*faultConn]struct{}{}}
	return f, kafka.Config{Brokers: brokers, Dial: f.dial}
}

func (f *faultNet) dial(ctx context.Context, network, address string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.ErrDeadlineExceeded}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &faultConn{Conn: conn, net: f, address: address}
	f.conns[c] = struct{}{}
	return c, nil
}

// outage ends all connections, and refuses new ones until it is over.
func (f *faultNet) outage(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
	for c := range f.conns {
		_ = c.Close()
		delete(f.conns, c)
	}
}

func (f *faultNet) fateOf() fate {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	return f.decide(f.n - 1)
}

// requests is how many there were.
func (f *faultNet) requests() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n
}

// release sends what was delayed, and waits until the broker has answered.
func (f *faultNet) release(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, request := range f.delayed {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", request.address)
		require.NoError(t, err)
		_, err = conn.Write(request.bytes)
		require.NoError(t, err)
		_, err = io.ReadFull(conn, make([]byte, 4))
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
	f.delayed = nil
}

// faultConn relies on sarama's writing a request at once.
type faultConn struct {
	net.Conn
	net     *faultNet
	address string

	mu     sync.Mutex
	broken error // of the next read
}

func (c *faultConn) Write(p []byte) (int, error) {
	if len(p) < 6 || kmsg.Key(binary.BigEndian.Uint16(p[4:])) != kmsg.Produce {
		return c.Conn.Write(p)
	}
	switch c.net.fateOf() {
	case pass:
	case loseAnswer:
		c.breaks(io.ErrUnexpectedEOF)
	case delayedAnswer:
		c.breaks(os.ErrDeadlineExceeded)
	case loseRequest:
		n, _ := c.Conn.Write(p[:len(p)/2])
		_ = c.Close()
		return n, io.ErrClosedPipe
	case delayRequest:
		c.breaks(os.ErrDeadlineExceeded)
		c.net.mu.Lock()
		defer c.net.mu.Unlock()
		c.net.delayed = append(c.net.delayed, delayedRequest{c.address, bytes.Clone(p)})
		_ = c.Close() // what waits for an answer
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *faultConn) breaks(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = err
}

func (c *faultConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return 0, c.broken
	}
	return n, err
}
