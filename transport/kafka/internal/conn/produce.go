package conn

import (
	"cmp"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport/kafka/internal/sequence"
)

// produceVersion is the version of Kafka 2.8. Later versions change what a transaction needs (KIP-890), and nothing else that is used
// here.
const produceVersion = 9

// NewProduceRequest returns an empty request. p is nil outside of transactions.
func NewProduceRequest(p *Producer) *sarama.ProduceRequest {
	r := &sarama.ProduceRequest{
		Version:      produceVersion,
		RequiredAcks: sarama.WaitForAll,
		Timeout:      int32(brokerTimeout / time.Millisecond),
	}
	if p != nil {
		r.Version = p.version(produceVersion, produceV2Version)
		r.TransactionalID = &p.ID
	}
	return r
}

// Open waits until the client's connection to the broker is open.
func Open(broker *sarama.Broker) error {
	connected, err := broker.Connected()
	if !connected {
		return sequence.NotSentError{Cause: cmp.Or(err, sarama.ErrNotConnected)}
	}
	return nil
}

// Produce sends the request and waits for the answer, at most the client's read timeout. Unlike sarama's Produce it does not hold the
// broker's lock meanwhile. After an error it closes the connection: sarama would keep a connection whose answer is late and fail every
// later request on it.
func Produce(broker *sarama.Broker, config *sarama.Config, request *sarama.ProduceRequest) (*sarama.ProduceResponse, error) {
	_ = broker.Open(config) // if it is open already, this does nothing
	if err := Open(broker); err != nil {
		return nil, err
	}
	type result struct {
		response *sarama.ProduceResponse
		err      error
	}
	answered := make(chan result, 1)
	err := broker.AsyncProduce(request, func(response *sarama.ProduceResponse, err error) { answered <- result{response, err} })
	var answer result
	if err == nil {
		answer = <-answered
		err = answer.err
	}
	if err != nil {
		_ = broker.Close()
	}
	return answer.response, err
}
