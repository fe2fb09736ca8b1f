package sequence

import (
	"errors"
	"fmt"
	"io"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport"
)

// Answer is the broker's answer to a batch.
type Answer struct {
	Kind    Kind
	Err     error
	records []int32 // if refused: the records at fault, if the broker names them
}

// Kind is what an answer means.
type Kind int

const (
	// Appended means that the batch is in the log, by this attempt or an earlier one.
	Appended Kind = iota
	// Retriable means that this attempt did not append the batch; another may.
	Retriable
	// Unknown means that the batch may be in the log.
	Unknown
	// Refused means that the batch is not in the log because of its content.
	Refused
	// Unsequenced means that the batch is not in the log, because the broker no longer knows the producer's sequence.
	Unsequenced
	// Fenced means that the batch is not in the log, because the broker knows another producer, or a later epoch, by this identity.
	Fenced
	// Unavailable means that the batch is not in the log and another attempt would not help.
	Unavailable
)

// AnswerTo interprets the broker's answer to one batch. failure is the request's error.
func AnswerTo(response *sarama.ProduceResponse, failure error, topic string, partition int32) Answer {
	var unsent NotSentError
	switch {
	case errors.As(failure, &unsent):
		return Answer{Kind: Retriable, Err: failure}
	case failure != nil:
		return Answer{Kind: Unknown, Err: failure}
	}
	block := response.GetBlock(topic, partition)
	if block == nil {
		return Answer{Kind: Unknown, Err: fmt.Errorf("the answer to a produce request tells nothing of partition %d: %w", partition, io.ErrUnexpectedEOF)}
	}
	a := Answer{Kind: kindOf(block.Err)}
	if a.Kind == Appended {
		return a
	}
	a.Err = Named(block.Err)
	if block.ErrorMessage != nil && *block.ErrorMessage != "" {
		a.Err = fmt.Errorf("%w: %s", a.Err, *block.ErrorMessage)
	}
	if block.Err == sarama.ErrNotEnoughReplicas {
		a.Err = fmt.Errorf("start the brokers that are missing, or lower the topic's min.insync.replicas: %w", a.Err)
	}
	switch a.Kind {
	case Refused:
		a.Err = fmt.Errorf("%w: %w", transport.ErrRejected, a.Err)
		for _, record := range block.RecordErrors {
			a.records = append(a.records, record.BatchIndex)
		}
	case Unavailable:
		a.Err = fmt.Errorf("%w: %w", transport.ErrUnavailable, a.Err)
	case Appended, Retriable, Unknown, Unsequenced, Fenced:
	}
	return a
}

// kindOf interprets an error code of a produce response. Only errors of checks before the append are known to have no effect: a leader
// that loses its leadership while it waits for its replicas answers that it is not the leader, and the next leader may have the batch.
func kindOf(code sarama.KError) Kind {
	switch code {
	case sarama.ErrNoError, sarama.ErrDuplicateSequenceNumber:
		return Appended
	case sarama.ErrNotEnoughReplicas, sarama.ErrUnknownTopicOrPartition, sarama.ErrInvalidMessage, sarama.ErrThrottlingQuotaExceeded,
		sarama.ErrConcurrentTransactions:
		return Retriable
	case sarama.ErrMessageSizeTooLarge, sarama.ErrMessageSetSizeTooLarge, sarama.ErrInvalidRecord, sarama.ErrInvalidTimestamp,
		sarama.ErrUnsupportedCompressionType, sarama.ErrUnsupportedForMessageFormat:
		return Refused
	case sarama.ErrOutOfOrderSequenceNumber, sarama.ErrUnknownProducerID:
		return Unsequenced
	case sarama.ErrInvalidProducerEpoch, sarama.ErrProducerFenced, sarama.ErrInvalidProducerIDMapping:
		return Fenced
	case sarama.ErrTopicAuthorizationFailed, sarama.ErrClusterAuthorizationFailed, sarama.ErrInvalidRequiredAcks,
		sarama.ErrInvalidTopic, sarama.ErrInvalidTxnState, sarama.ErrInvalidRequest:
		return Unavailable
	default:
		return Unknown
	}
}

// errTransactionAbortable is a code that sarama does not know.
const errTransactionAbortable sarama.KError = 120

// Named returns the code with its name, if sarama has no text for it.
func Named(code sarama.KError) error {
	switch code {
	case sarama.ErrProducerFenced:
		return fmt.Errorf("PRODUCER_FENCED, a later producer has the transactional ID: %w", code)
	case errTransactionAbortable:
		return fmt.Errorf("TRANSACTION_ABORTABLE, the transaction can only be aborted and begun again: %w", code)
	default:
		return code
	}
}

// NotSentError is the error of a request that was never sent.
type NotSentError struct{ Cause error }

func (e NotSentError) Error() string { return "connect: " + e.Cause.Error() }
func (e NotSentError) Unwrap() error { return e.Cause }

// ErrTopicMissing is returned for a topic that does not exist and must not be created.
var ErrTopicMissing = errors.New("the topic is missing")

// Terminal reports whether an error of looking up a topic or a producer ID must be fixed by an operator.
func Terminal(err error) bool {
	for _, code := range []sarama.KError{sarama.ErrTopicAuthorizationFailed, sarama.ErrClusterAuthorizationFailed, sarama.ErrSASLAuthenticationFailed, sarama.ErrInvalidTopic} {
		if errors.Is(err, code) {
			return true
		}
	}
	return errors.Is(err, ErrTopicMissing)
}
