package conn

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"time"
)

const (
	// lookTimeout bounds each check in look.
	lookTimeout = time.Second
	// lookAfter is how long a broker may not answer before its port is checked.
	lookAfter = 1500 * time.Millisecond
)

// port is the result of checking a broker's port.
type port struct {
	plain, tls bool // it speaks Kafka's protocol, or TLS
	anonymous  bool // it accepts requests without authentication
}

// look checks which protocol the port speaks.
func (c Config) look(ctx context.Context, address string) (found port) {
	found.plain = c.ask(ctx, address, speaksKafka)
	found.tls = !found.plain && c.ask(ctx, address, speaksTLS)
	if c.SASL.Mechanism != "" && (found.plain && c.TLS == nil || found.tls && c.TLS != nil) {
		ctx, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		c.SASL = SASL{}
		found.anonymous = knock(address, c.clientConfig(ctx, "")) == nil
	}
	return found
}

// laterLook is a look that begins after a delay.
type laterLook struct {
	timer *time.Timer
	found chan port
}

// lookLater looks at the port after lookAfter, unless it is stopped before.
func (c Config) lookLater(ctx context.Context, address string) laterLook {
	found := make(chan port, 1)
	return laterLook{time.AfterFunc(lookAfter, func() { found <- c.look(ctx, address) }), found}
}

// result returns what was found, or nothing if the look has not begun.
func (l laterLook) result() (found port) {
	if !l.timer.Stop() {
		found = <-l.found
	}
	return found
}

func (c Config) ask(ctx context.Context, address string, speaks func(context.Context, net.Conn) bool) bool {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	conn, err := c.Dial(ctx, "tcp", address)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	return speaks(ctx, conn)
}

// speaksKafka sends ApiVersions, which a broker answers without authentication.
func speaksKafka(_ context.Context, conn net.Conn) bool {
	const apiVersions, correlation = 18, 1
	request := binary.BigEndian.AppendUint32(nil, 10) // the size of what follows
	request = binary.BigEndian.AppendUint16(request, apiVersions)
	request = binary.BigEndian.AppendUint16(request, 0) // the version
	request = binary.BigEndian.AppendUint32(request, correlation)
	request = append(request, 0xff, 0xff) // no client ID
	if _, err := conn.Write(request); err != nil {
		return false
	}
	answer := make([]byte, 8) // its size and the correlation
	_, err := io.ReadFull(conn, answer)
	return err == nil && binary.BigEndian.Uint32(answer[4:]) == correlation
}

// speaksTLS reports whether a TLS handshake completes, or fails only because of certificates.
func speaksTLS(ctx context.Context, conn net.Conn) bool {
	err := tls.Client(conn, &tls.Config{ServerName: "broker", MinVersion: tls.VersionTLS12}).HandshakeContext(ctx)
	var untrusted *tls.CertificateVerificationError
	return err == nil || errors.As(err, &untrusted) || strings.Contains(err.Error(), "remote error: tls: ")
}
