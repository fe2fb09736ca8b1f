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

// fate is what becomes of a request, or of the process that sends it.
type fate int

const (
	pass         fate = iota
	loseAnswer        // the broker has it, and the connection breaks before the answer
	delayAnswer       // the broker has it, and the read timeout is over
	loseRequest       // the connection breaks in the middle of it
	delayRequest      // it is on its way, and the read timeout is over; release sends it
	killProcess       // before it, until restore: kill -9
	stopProcess       // before it, until thaw: SIGSTOP
)

// faultNet is the network of a process. It is safe for concurrent use.
type faultNet struct {
	decide   func(kind kmsg.Key, n int) fate // of the n-th request of its kind, from 1; nil: all pass
	happened chan struct{}                   // closed by the first that does not pass
	happens  func()

	mu       sync.Mutex
	counts   map[kmsg.Key]int
	received map[string]int // bytes, by the broker's address
	dead     bool
	frozen   chan struct{} // closed when the process goes on; nil while it does
	conns    map[*faultConn]struct{}
	delayed  []delayedRequest
}

type delayedRequest struct {
	address string
	bytes   []byte
}

func newFaultNet(decide func(kind kmsg.Key, n int) fate) *faultNet {
	f := &faultNet{decide: decide, happened: make(chan struct{}), counts: map[kmsg.Key]int{}, received: map[string]int{}, conns: map[*faultConn]struct{}{}}
	f.happens = sync.OnceFunc(func() { close(f.happened) })
	return f
}

// nth is the fate of the n-th request of the kind, and of no other.
func nth(kind kmsg.Key, n int, what fate) func(kmsg.Key, int) fate {
	return func(k kmsg.Key, i int) fate {
		if k == kind && i == n {
			return what
		}
		return pass
	}
}

func (f *faultNet) dial(ctx context.Context, network, address string) (net.Conn, error) {
	f.wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
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

// kill ends all connections, and refuses new ones until restore.
func (f *faultNet) kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = true
	for c := range f.conns {
		_ = c.Conn.Close()
	}
}

func (f *faultNet) restore() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = false
}

// freeze keeps all that is sent and received back until thaw.
func (f *faultNet) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.frozen = make(chan struct{})
}

func (f *faultNet) thaw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.frozen)
	f.frozen = nil
}

func (f *faultNet) wait() {
	f.mu.Lock()
	frozen := f.frozen
	f.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

// release sends what was delayed, and waits until the broker has answered.
func (f *faultNet) release(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	delayed := f.delayed
	f.delayed = nil
	f.mu.Unlock()
	require.NotEmpty(t, delayed)
	for _, request := range delayed {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", request.address)
		require.NoError(t, err)
		_, err = conn.Write(request.bytes)
		require.NoError(t, err)
		_, err = io.ReadFull(conn, make([]byte, 4))
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
}

// count is how many requests of the kind there were.
func (f *faultNet) count(kind kmsg.Key) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[kind]
}

// read is how many bytes were received.
func (f *faultNet) read() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := 0
	for _, n := range f.received {
		all += n
	}
	return all
}

// readFrom is how many bytes were received from the broker.
func (f *faultNet) readFrom(address string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.received[address]
}

// fateOf is that of the request that starts with b. It is decided without the lock, so that decide may wait.
func (f *faultNet) fateOf(b []byte) fate {
	if len(b) < 6 {
		return pass
	}
	kind := kmsg.Key(binary.BigEndian.Uint16(b[4:]))
	f.mu.Lock()
	f.counts[kind]++
	n := f.counts[kind]
	f.mu.Unlock()
	if f.decide == nil {
		return pass
	}
	return f.decide(kind, n)
}

// faultConn relies on sarama's writing a request at once.
type faultConn struct {
	net.Conn
	net     *faultNet
	address string

	mu     sync.Mutex
	broken error // of the next read
}

func (c *faultConn) Write(b []byte) (int, error) {
	what := c.net.fateOf(b)
	if what != pass {
		defer c.net.happens()
	}
	switch what {
	case pass:
	case loseAnswer:
		c.breaks(io.ErrUnexpectedEOF)
	case delayAnswer:
		c.breaks(os.ErrDeadlineExceeded)
	case loseRequest:
		n, _ := c.Conn.Write(b[:len(b)/2])
		_ = c.Conn.Close()
		return n, io.ErrClosedPipe
	case delayRequest:
		c.breaks(os.ErrDeadlineExceeded)
		c.net.mu.Lock()
		defer c.net.mu.Unlock()
		c.net.delayed = append(c.net.delayed, delayedRequest{c.address, bytes.Clone(b)})
		_ = c.Conn.Close() // what waits for an answer
		return len(b), nil
	case killProcess:
		c.net.kill()
	case stopProcess:
		c.net.freeze()
		c.net.happens()
	}
	c.net.wait()
	return c.Conn.Write(b)
}

func (c *faultConn) breaks(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = err
}

func (c *faultConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.net.wait()
	c.net.mu.Lock()
	c.net.received[c.address] += n
	c.net.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return 0, c.broken
	}
	return n, err
}

func (c *faultConn) Close() error {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	delete(c.net.conns, c)
	return c.Conn.Close()
}
