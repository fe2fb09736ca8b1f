package conn

import (
	"github.com/IBM/sarama"
)

// Link is a connection to a coordinator, for one user: on sarama's own connection to a broker, a request waits for the answers to all
// requests before it, whoever sent them. It must not be used concurrently.
type Link struct {
	client  sarama.Client
	find    func() (*sarama.Broker, error)
	refresh func() error
	broker  *sarama.Broker
	tap     *tap
}

// NewLink returns a link to the coordinator that find returns. refresh makes find ask the brokers again.
func NewLink(client sarama.Client, find func() (*sarama.Broker, error), refresh func() error) *Link {
	return &Link{client: client, find: find, refresh: refresh, tap: &tap{}}
}

// do sends a request. After an error the request may have arrived or may still arrive, and the connection is closed.
func (l *Link) do(send func(*sarama.Broker) error) error {
	if l.broker == nil {
		at, err := l.find()
		if err != nil {
			l.Move()
			return err
		}
		l.broker = sarama.NewBroker(at.Addr())
		if err := l.broker.Open(l.tap.config(*l.client.Config())); err != nil {
			l.broker = nil
			return err
		}
	}
	err := send(l.broker)
	if err != nil {
		l.Move()
	}
	return err
}

// Move makes the next request look up the coordinator again.
func (l *Link) Move() {
	l.Close()
	_ = l.refresh() // the next request returns the error
}

// Close closes the connection; the next request opens a new one.
func (l *Link) Close() {
	if l.broker != nil {
		_ = l.broker.Close() // it may be closed
		l.broker = nil
	}
}
