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
)

// mishap is what happens to a request.
type mishap int

const (
	nothing     mishap = iota
	answerLost         // the broker has it, and the connection breaks before the answer
	requestLost        // the connection breaks in the middle of it
	requestLate        // it is on its way, and the read timeout is over; release sends it
	killed             // the process is killed before it: kill -9
	stopped            // the process is stopped before it, until it is continued: SIGSTOP
)

var mishaps = map[string]mishap{
	"the answer is lost": answerLost, "the request is lost": requestLost, "the request is late": requestLate, "killed": killed, "stopped": stopped,
}

// processNet is the network of a process. It is safe for concurrent use.
type processNet struct {
	decide   func(kind kmsg.Key, n int) mishap // of the n-th request of its kind, from 1
	happened chan struct{}                     // closed by the first mishap

	mu        sync.Mutex
	happening sync.Once
	counts    map[kmsg.Key]int
	dead      bool
	frozen    chan struct{} // closed when the process goes on; nil while it does
	conns     map[*processConn]struct{}
	late      []lateRequest
}

type lateRequest struct {
	address string
	bytes   []byte
}

func newProcessNet(decide func(kind kmsg.Key, n int) mishap) *processNet {
	return &processNet{decide: decide, happened: make(chan struct{}), counts: map[kmsg.Key]int{}, conns: map[*processConn]struct{}{}}
}

// nth decides that the n-th request of the kind, and no other, has the mishap.
func nth(kind kmsg.Key, n int, m mishap) func(kmsg.Key, int) mishap {
	return func(k kmsg.Key, i int) mishap {
		if k == kind && i == n {
			return m
		}
		return nothing
	}
}

func (p *processNet) dial(ctx context.Context, network, address string) (net.Conn, error) {
	p.wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.ErrDeadlineExceeded}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &processConn{Conn: conn, net: p, address: address}
	p.conns[c] = struct{}{}
	return c, nil
}

// kill ends all connections, and refuses new ones.
func (p *processNet) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = true
	for c := range p.conns {
		_ = c.Conn.Close()
	}
}

// freeze keeps all that is sent and received back until thaw.
func (p *processNet) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = make(chan struct{})
}

func (p *processNet) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.frozen)
	p.frozen = nil
}

func (p *processNet) wait() {
	p.mu.Lock()
	frozen := p.frozen
	p.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

// release delivers the late requests, and waits until the broker has answered.
func (p *processNet) release(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	late := p.late
	p.late = nil
	p.mu.Unlock()
	require.NotEmpty(t, late)
	for _, request := range late {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", request.address)
		require.NoError(t, err)
		_, err = conn.Write(request.bytes)
		require.NoError(t, err)
		_, err = io.ReadFull(conn, make([]byte, 4))
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
}

// count is how many requests of the kind were sent.
func (p *processNet) count(kind kmsg.Key) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[kind]
}

// processConn relies on sarama's writing a request at once.
type processConn struct {
	net.Conn
	net     *processNet
	address string

	mu     sync.Mutex
	broken bool
}

func (c *processConn) Write(b []byte) (int, error) {
	m := nothing
	if len(b) >= 6 {
		kind := kmsg.Key(binary.BigEndian.Uint16(b[4:]))
		c.net.mu.Lock()
		c.net.counts[kind]++
		n := c.net.counts[kind]
		c.net.mu.Unlock()
		m = c.net.decide(kind, n)
	}
	if m != nothing {
		defer c.net.happening.Do(func() { close(c.net.happened) })
	}
	switch m {
	case nothing:
	case answerLost:
		c.breaks()
	case requestLost:
		n, _ := c.Conn.Write(b[:len(b)/2])
		_ = c.Conn.Close()
		return n, io.ErrClosedPipe
	case requestLate:
		c.breaks()
		c.net.mu.Lock()
		defer c.net.mu.Unlock()
		c.net.late = append(c.net.late, lateRequest{c.address, bytes.Clone(b)})
		_ = c.Conn.Close() // what waits for an answer
		return len(b), nil
	case killed:
		c.net.kill()
	case stopped:
		c.net.freeze()
		c.net.happening.Do(func() { close(c.net.happened) })
	}
	c.net.wait()
	return c.Conn.Write(b)
}

func (c *processConn) breaks() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = true
}

func (c *processConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.net.wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken {
		return 0, os.ErrDeadlineExceeded
	}
	return n, err
}

func (c *processConn) Close() error {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	delete(c.net.conns, c)
	return c.Conn.Close()
}
