package conn

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport/kafka/internal/meter"
)

// dialer implements golang.org/x/net/proxy.Dialer, which sarama accepts. It belongs to one client. Its context ends with the client's
// connections, so that no dial outlives them. It encrypts the connections itself, because sarama's TLS settings cannot change.
type dialer struct {
	ctx   context.Context
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
	tls   func() *tls.Config // settings of the next connection; nil: no encryption
	meter *meter.Meter       // nil: none
	first string             // the broker to connect to first; "": any
	begun atomic.Bool        // the first broker has answered or failed
}

// errNotFirst is returned for other brokers until the client's first broker has answered or failed.
var errNotFirst = fmt.Errorf("another broker is asked first: %w", sarama.ErrNotConnected)

// Dial implements proxy.Dialer. Until the first broker has answered or failed, it refuses all others. sarama asks the configured brokers
// one after another, in random order, and each broker that accepts a connection and does not answer costs a timeout.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	if d.first != "" && address != d.first && !d.begun.Load() {
		return nil, errNotFirst
	}
	ctx, cancel := context.WithTimeout(d.ctx, dialTimeout)
	defer cancel()
	conn, err := d.dial(ctx, network, address)
	if err != nil {
		d.begun.Store(true)
		return nil, err
	}
	c := &clientConn{Conn: conn, dialer: d, answerBy: time.Now().Add(dialTimeout)}
	c.forget = context.AfterFunc(d.ctx, func() { _ = conn.Close() })
	if d.tls == nil {
		return d.watch(c, address), nil
	}
	_ = c.SetReadDeadline(time.Time{}) // of the TLS handshake, which begins with the first request
	encryption := d.tls()
	if encryption.ServerName == "" {
		encryption = encryption.Clone()
		encryption.ServerName, _, _ = net.SplitHostPort(address) // the address was dialed, so it is valid
	}
	return d.watch(tls.Client(c, encryption), address), nil
}

func (d *dialer) watch(c net.Conn, address string) net.Conn {
	if d.meter == nil {
		return c
	}
	return d.meter.Watch(c, address)
}

// clientConn is a connection that ends with its client. A broker that does not answer within dialTimeout of the dial counts as
// unreachable. Later answers have the timeout that sarama sets.
type clientConn struct {
	net.Conn
	dialer   *dialer
	forget   func() bool
	answerBy time.Time
	answered atomic.Bool
	closing  sync.Once
}

// SetReadDeadline implements net.Conn.
func (c *clientConn) SetReadDeadline(t time.Time) error {
	if !c.answered.Load() && (t.IsZero() || t.After(c.answerBy)) {
		t = c.answerBy
	}
	return c.Conn.SetReadDeadline(t)
}

// Read implements net.Conn.
func (c *clientConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.answered.Load() {
		c.answered.Store(true)
		c.dialer.begun.Store(true)
	}
	return n, err
}

// Close implements net.Conn.
func (c *clientConn) Close() error {
	c.closing.Do(func() {
		c.forget()
		c.dialer.begun.Store(true)
	})
	return c.Conn.Close()
}
