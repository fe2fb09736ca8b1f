package conn

import (
	"encoding/binary"
	"net"

	"github.com/IBM/sarama"
)

// tap keeps the last answer that came over a connection, for answers that sarama cannot decode. Requests on the connection are sent one
// at a time, so the tap needs no lock.
type tap struct {
	net.Conn
	read []byte // since the last request
}

// config returns client settings that open a connection through the tap.
func (t *tap) config(c sarama.Config) *sarama.Config {
	c.Net.Proxy.Dialer = tapDialer{to: t, below: c.Net.Proxy.Dialer} // it encrypts below the tap
	return &c
}

// answer returns the answer to the last request, from its correlation ID on, and whether it is complete.
func (t *tap) answer() (answer []byte, whole bool) {
	const length = 4
	if len(t.read) < length {
		return nil, false
	}
	answer = t.read[length:]
	return answer, len(answer) == int(binary.BigEndian.Uint32(t.read))
}

// Write implements net.Conn. sarama writes each request in one call.
func (t *tap) Write(b []byte) (int, error) {
	t.read = t.read[:0]
	return t.Conn.Write(b)
}

// Read implements net.Conn.
func (t *tap) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	t.read = append(t.read, b[:n]...)
	return n, err
}

// tapDialer implements proxy.Dialer, like below.
type tapDialer struct {
	to    *tap
	below interface {
		Dial(network, address string) (net.Conn, error)
	}
}

// Dial implements proxy.Dialer.
func (d tapDialer) Dial(network, address string) (net.Conn, error) {
	d.to.read = nil
	conn, err := d.below.Dial(network, address)
	if err != nil {
		return nil, err
	}
	d.to.Conn = conn
	return d.to, nil
}
