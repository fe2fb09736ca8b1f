package sequence

import (
	"errors"
	"fmt"
	"io"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport"
)

// Answer is what became of a batch.
type Answer struct {
	Kind    Kind
	Err     error
	records []int32 // of refused: the records that are to blame, where the broker tells
}

// Kind is what an answer means.
type Kind int

const (
	// Appended is for a batch that is in the log, by this attempt or an earlier one.
	Appended Kind = iota
	// Retriable is for one that is not in the log by this attempt; another may succeed.
	Retriable
	// Unknown is for one that may be in the log.
	Unknown
	// Refused is for one that is not in the log because of what it is.
	Refused
	// Unsequenced is for one that is not in the log, by a broker that has lost count of the producer's batches.
	Unsequenced
	// Fenced is for one that is not in the log, by a broker that knows another producer, or a later epoch, by this identity.
	Fenced
	// Unavailable is for one that is not in the log; another attempt would not help.
	Unavailable
)

// AnswerTo reads the broker's answer to one batch; failure is the request's.
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

// kindOf reads an error code of a produce response. Only what brokers check before they append is known to be without
// effect: a leader that loses its office while it waits for its replicas answers that it is not the leader, and the next
// one may have the batch.
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

// Named is the code with its name, where sarama has no text for it.
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

// NotSentError is of a request that has never left.
type NotSentError struct{ Cause error }

func (e NotSentError) Error() string { return "connect: " + e.Cause.Error() }
func (e NotSentError) Unwrap() error { return e.Cause }

// ErrTopicMissing is of a topic that is not there and is not to be created.
var ErrTopicMissing = errors.New("the topic is missing")

// Terminal tells errors of looking up a topic or a producer ID that an operator must mend.
func Terminal(err error) bool {
	for _, code := range []sarama.KError{sarama.ErrTopicAuthorizationFailed, sarama.ErrClusterAuthorizationFailed, sarama.ErrSASLAuthenticationFailed, sarama.ErrInvalidTopic} {
		if errors.Is(err, code) {
			return true
		}
	}
	return errors.Is(err, ErrTopicMissing)
}
