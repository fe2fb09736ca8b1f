package conn

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport/kafka/internal/backoff"
)

// A request without a connection is retried for connectPatience, and at least connectAttempts times, because one attempt may take a whole
// timeout if a broker does not answer.
const (
	connectPatience = 5 * time.Second
	connectAttempts = 3
	// firstConnectWait is the first wait between attempts; it doubles.
	firstConnectWait = 20 * time.Millisecond
)

// Connected repeats ask while it fails because there is no connection. On a healthy cluster that lasts a moment: sarama returns a broker
// whose connection another goroutine is about to open.
func Connected(ctx context.Context, ask func() error) error {
	until := time.Now().Add(connectPatience)
	retry := backoff.Doubling{Min: firstConnectWait, Max: RetryWait}
	for attempt := 1; ; attempt++ {
		err := ask()
		if !unconnected(err) || attempt >= connectAttempts && time.Now().After(until) || !backoff.Sleep(ctx, retry.Wait(attempt)) {
			return err
		}
	}
}

// unconnected reports whether a request had no connection or lost it.
func unconnected(err error) bool {
	for _, cause := range []error{sarama.ErrNotConnected, sarama.ErrOutOfBrokers, sarama.ErrBrokerNotFound, sarama.ErrControllerNotAvailable, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed} {
		if errors.Is(err, cause) {
			return true
		}
	}
	var network net.Error
	return errors.As(err, &network)
}
