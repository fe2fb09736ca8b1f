package machine

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
)

// ErrPortTaken is wrapped by the error of a service that could not bind its port, because another process had taken it.
var ErrPortTaken = errors.New("the port was taken by another process")

// FreePort returns a TCP port that was free on 127.0.0.1 a moment ago. Nothing reserves the port, so the caller must retry on
// ErrPortTaken.
func FreePort() (int, error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return listener.Addr().(*net.TCPAddr).Port, listener.Close()
}

// QuietPort returns a free port below the range of ephemeral ports. A server that will be down for a while needs one: otherwise a
// connection may take its port meanwhile, or a client that tries to reach it may connect to itself.
func QuietPort() (int, error) {
	const first, last = 15_000, 32_000
	var err error
	for range 100 {
		var listener net.Listener
		port := first + rand.IntN(last-first)
		listener, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, listener.Close()
		}
	}
	return 0, err
}

// SaysPortTaken recognizes EADDRINUSE in a service's log. PostgreSQL and the JVM both print the C library's text, which is English
// because the watchdog sets LC_ALL=C.
func SaysPortTaken(log string) bool {
	return strings.Contains(strings.ToLower(log), "address already in use")
}
