// Package quietport listens on ports of 127.0.0.1 that the kernel gives to no other socket by itself.
package quietport

import (
	"context"
	"math/rand/v2"
	"net"
	"strconv"
)

// The ports lie below the ephemeral range of Linux (32768 to 60999) and of macOS (49152 to 65535).
const first, last = 15_000, 32_000

// Listen listens on a free port below the range of ephemeral ports. A server that will be down for a while, and return to its address,
// needs such a port: otherwise an outgoing connection may take it meanwhile, or a client that tries to reach it may connect to itself.
func Listen(ctx context.Context) (net.Listener, error) {
	var err error
	for range 100 {
		var l net.Listener
		port := first + rand.IntN(last-first)
		l, err = (&net.ListenConfig{}).Listen(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return l, nil
		}
	}
	return nil, err
}

// Address returns an address on which Listen could listen a moment ago. Nothing reserves its port.
func Address(ctx context.Context) (string, error) {
	l, err := Listen(ctx)
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
