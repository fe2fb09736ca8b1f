package transport

import (
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Rejection implements Reject and Rejected of Delivery. A transport's deliveries embed it. It is safe for concurrent use.
type Rejection struct{ cause atomic.Pointer[error] }

// Reject implements Delivery.
func (r *Rejection) Reject(cause error) {
	if cause != nil {
		r.cause.Store(&cause)
	}
}

// Rejected implements Delivery.
func (r *Rejection) Rejected() error {
	if cause := r.cause.Load(); cause != nil {
		return *cause
	}
	return nil
}

// Metadata of a rejected message in its dead-letter topic.
const (
	DeadReasonMetadata = "millrace_dead_reason" // DeadRejected
	DeadErrorMetadata  = "millrace_dead_error"  // the cause, up to 1,000 bytes
)

// DeadRejected is the reason of a message that was rejected.
const DeadRejected = "rejected"

// DeadLetterConsumer is who reads the dead-letter topics that a transport creates: what arrives there is kept for it from
// the beginning.
const DeadLetterConsumer = "dead-letters"

// DeadLetterTopic is where a rejected message of the topic goes when its consumer has no dead-letter topic configured.
func DeadLetterTopic(topic, consumer string) string {
	return topic + "." + consumer + deadLetters
}

const deadLetters = ".dead-letters"

// IsDeadLetterTopic tells whether a topic has the name of a DeadLetterTopic.
func IsDeadLetterTopic(topic string) bool { return strings.HasSuffix(topic, deadLetters) }

// maxDeadError is how many bytes of the cause are kept: no broker refuses the dead letter for it.
const maxDeadError = 1000

// MarkRejected adds to a dead letter's metadata that it was rejected, and why. Transports call it.
func MarkRejected(msg *message.Message, cause error) {
	text := strings.ToValidUTF8(strings.ReplaceAll(cause.Error(), "\x00", ""), "?")
	if len(text) > maxDeadError {
		text = text[:maxDeadError]
		for !utf8.ValidString(text) { // at most three times: the cut is within a character
			text = text[:len(text)-1]
		}
	}
	msg.Metadata[DeadReasonMetadata] = DeadRejected
	msg.Metadata[DeadErrorMetadata] = text
}
