package kafka

import (
	"errors"
	"fmt"
	"io"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/transport"
)

// answer is what became of a batch.
type answer struct {
	kind    answerKind
	err     error
	records []int32 // of refused: the records that are to blame, where the broker tells
}

type answerKind int

const (
	// appended: it is in the log, by this attempt or an earlier one.
	appended answerKind = iota
	// retriable: it is not in the log by this attempt, and another may succeed.
	retriable
	// unknown: it may be in the log.
	unknown
	// refused: it is not, because of what it is.
	refused
	// unsequenced: it is not, and the broker has lost count of the producer's batches.
	unsequenced
	// fenced: it is not, and the broker knows another producer, or a later epoch, by this identity.
	fenced
	// unavailable: it is not, and trying again does not help.
	unavailable
)

// answerTo reads the broker's answer to one batch; failure is the request's.
func answerTo(response *sarama.ProduceResponse, failure error, topic string, partition int32) answer {
	var unsent notSentError
	switch {
	case errors.As(failure, &unsent):
		return answer{kind: retriable, err: failure}
	case failure != nil:
		return answer{kind: unknown, err: failure}
	}
	block := response.GetBlock(topic, partition)
	if block == nil {
		return answer{kind: unknown, err: fmt.Errorf("the answer to a produce request tells nothing of partition %d: %w", partition, io.ErrUnexpectedEOF)}
	}
	a := answer{kind: kindOf(block.Err)}
	if a.kind == appended {
		return a
	}
	a.err = block.Err
	if block.ErrorMessage != nil && *block.ErrorMessage != "" {
		a.err = fmt.Errorf("%w: %s", block.Err, *block.ErrorMessage)
	}
	switch a.kind {
	case refused:
		a.err = fmt.Errorf("%w: %w", transport.ErrRejected, a.err)
		for _, record := range block.RecordErrors {
			a.records = append(a.records, record.BatchIndex)
		}
	case unavailable:
		a.err = fmt.Errorf("%w: %w", transport.ErrUnavailable, a.err)
	case appended, retriable, unknown, unsequenced, fenced:
	}
	return a
}

// kindOf reads an error code of a produce response. Only what brokers check before they append is known to be without
// effect: a leader that loses its office while it waits for its replicas answers that it is not the leader, and the next
// one may have the batch.
func kindOf(code sarama.KError) answerKind {
	switch code {
	case sarama.ErrNoError, sarama.ErrDuplicateSequenceNumber:
		return appended
	case sarama.ErrNotEnoughReplicas, sarama.ErrUnknownTopicOrPartition, sarama.ErrInvalidMessage, sarama.ErrThrottlingQuotaExceeded:
		return retriable
	case sarama.ErrMessageSizeTooLarge, sarama.ErrMessageSetSizeTooLarge, sarama.ErrInvalidRecord, sarama.ErrInvalidTimestamp,
		sarama.ErrUnsupportedCompressionType, sarama.ErrUnsupportedForMessageFormat:
		return refused
	case sarama.ErrOutOfOrderSequenceNumber, sarama.ErrUnknownProducerID:
		return unsequenced
	case sarama.ErrInvalidProducerEpoch, sarama.ErrProducerFenced, sarama.ErrInvalidProducerIDMapping:
		return fenced
	case sarama.ErrTopicAuthorizationFailed, sarama.ErrClusterAuthorizationFailed, sarama.ErrInvalidRequiredAcks,
		sarama.ErrInvalidTopic, sarama.ErrInvalidTxnState, sarama.ErrInvalidRequest:
		return unavailable
	default:
		return unknown
	}
}

// hopeless tells errors of looking up a topic or a producer ID that an operator must mend.
func hopeless(err error) bool {
	for _, code := range []sarama.KError{sarama.ErrTopicAuthorizationFailed, sarama.ErrClusterAuthorizationFailed, sarama.ErrSASLAuthenticationFailed, sarama.ErrInvalidTopic} {
		if errors.Is(err, code) {
			return true
		}
	}
	return errors.Is(err, errTopicMissing)
}
