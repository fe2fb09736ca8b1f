package machine

import (
	"context"
	"errors"
	"net"
	"strings"

	"github.com/millrace-go/millrace/internal/quietport"
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

// QuietPort is FreePort for a server that will be down for a while and return.
func QuietPort() (int, error) {
	listener, err := quietport.Listen(context.Background())
	if err != nil {
		return 0, err
	}
	return listener.Addr().(*net.TCPAddr).Port, listener.Close()
}

// SaysPortTaken recognizes EADDRINUSE in a service's log. PostgreSQL and the JVM both print the C library's text, which is English
// because the watchdog sets LC_ALL=C.
func SaysPortTaken(log string) bool {
	return strings.Contains(strings.ToLower(log), "address already in use")
}
