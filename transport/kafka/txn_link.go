package kafka

import (
	"github.com/IBM/sarama"
)

// link is a connection to a coordinator. It has it for itself: on sarama's own connection to a broker a request waits for
// the answer to the one before, whoever sent it. It belongs to one goroutine at a time.
type link struct {
	client  sarama.Client
	find    func() (*sarama.Broker, error)
	refresh func() error
	broker  *sarama.Broker
}

// do sends a request. After an error nobody knows whether it has arrived, or is still to arrive, and the connection is
// closed.
func (l *link) do(send func(*sarama.Broker) error) error {
	if l.broker == nil {
		at, err := l.find()
		if err != nil {
			l.move()
			return err
		}
		l.broker = sarama.NewBroker(at.Addr())
		if err := l.broker.Open(l.client.Config()); err != nil {
			l.broker = nil
			return err
		}
	}
	err := send(l.broker)
	if err != nil {
		l.move()
	}
	return err
}

// move makes the next request look for the coordinator again.
func (l *link) move() {
	l.close()
	_ = l.refresh() // the next request tells
}

func (l *link) close() {
	if l.broker != nil {
		_ = l.broker.Close() // it may be closed
		l.broker = nil
	}
}
