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
	if cause == nil {
		r.cause.Store(nil)
		return
	}
	r.cause.Store(&cause)
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
	DeadReasonMetadata = "millrace_dead_reason" // its value is DeadRejected
	DeadErrorMetadata  = "millrace_dead_error"  // the cause, up to 1,000 bytes
)

// DeadRejected is the reason of a rejected message.
const DeadRejected = "rejected"

// DeadLetterConsumer is the consumer of the dead-letter topics that a transport creates. Messages are kept for it from the
// creation of the topic.
const DeadLetterConsumer = "dead-letters"

// DeadLetterTopic returns the topic of a consumer's rejected messages if its configuration has no dead-letter topic.
func DeadLetterTopic(topic, consumer string) string {
	return topic + "." + consumer + deadLetters
}

const deadLetters = ".dead-letters"

// IsDeadLetterTopic reports whether a topic's name has the form that DeadLetterTopic returns.
func IsDeadLetterTopic(topic string) bool { return strings.HasSuffix(topic, deadLetters) }

// maxDeadError is the maximum size of the stored cause in bytes, so that no broker refuses the dead letter because of it.
const maxDeadError = 1000

// MarkRejected adds the reason and the cause of a rejection to a dead letter's metadata. Transports call it.
func MarkRejected(msg *message.Message, cause error) {
	text := strings.ToValidUTF8(strings.ReplaceAll(cause.Error(), "\x00", ""), "?")
	if len(text) > maxDeadError {
		text = text[:maxDeadError]
		for !utf8.ValidString(text) { // at most three times: the cut may be within a character
			text = text[:len(text)-1]
		}
	}
	msg.Metadata[DeadReasonMetadata] = DeadRejected
	msg.Metadata[DeadErrorMetadata] = text
}
