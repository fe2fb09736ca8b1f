package kafka

import (
	"cmp"
	"time"

	"github.com/IBM/sarama"
)

// produceVersion is of Kafka 2.8; later ones change what a transaction needs (KIP-890), and nothing else that is used.
const produceVersion = 9

// newProduceRequest returns an empty request. transactionalID is nil outside of transactions.
func newProduceRequest(transactionalID *string) *sarama.ProduceRequest {
	return &sarama.ProduceRequest{
		Version:         produceVersion,
		TransactionalID: transactionalID,
		RequiredAcks:    sarama.WaitForAll,
		Timeout:         int32(brokerTimeout / time.Millisecond),
	}
}

// notSentError is of a request that has never left.
type notSentError struct{ cause error }

func (e notSentError) Error() string { return "connect: " + e.cause.Error() }
func (e notSentError) Unwrap() error { return e.cause }

// produce sends the request and waits for the answer, which comes within readTimeout. It does not hold the broker's lock
// meanwhile, as sarama's Produce would. After an error the connection is closed: sarama would leave one whose answer is
// late, and fail whatever is sent on it afterwards.
func produce(broker *sarama.Broker, config *sarama.Config, request *sarama.ProduceRequest) (*sarama.ProduceResponse, error) {
	_ = broker.Open(config) // it is open, or opens
	if connected, err := broker.Connected(); !connected {
		return nil, notSentError{cmp.Or(err, sarama.ErrNotConnected)}
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
