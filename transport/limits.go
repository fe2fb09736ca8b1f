package transport

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ErrLimit is wrapped by every error of Limits: the broker cannot carry the message. Publishing it again does not help. The
// error's text names the field, its value and the limit.
var ErrLimit = errors.New("message exceeds a limit")

// Limits is what one message may carry. A zero field means no limit. Each transport exports its limits.
type Limits struct {
	// Topic is the pattern that a topic's name must match. Default: none.
	Topic *regexp.Regexp
	// MessageBytes is the maximum size of payload, ID, key and metadata together.
	MessageBytes int
	// KeyBytes is the maximum size of a key.
	KeyBytes int
	// MetadataEntries is the maximum number of metadata entries, without the key.
	MetadataEntries int
	// MetadataKeyBytes is the maximum size of a metadata entry's name.
	MetadataKeyBytes int
	// MetadataValueBytes is the maximum size of a metadata entry's value.
	MetadataValueBytes int
}

// DefaultLimits fits both brokers: 10 MB less the overhead of a Pub/Sub request, Pub/Sub's maximum key, and topic names that both
// brokers accept.
var DefaultLimits = Limits{
	Topic:        regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]{2,248}$`),
	MessageBytes: 9_998_000,
	KeyBytes:     1024,
}

// IsZero reports whether no limit is set.
func (l Limits) IsZero() bool { return l == Limits{} }

// Check reports everything in the message that exceeds the limits, as errors that wrap ErrLimit.
func (l Limits) Check(topic string, msg *message.Message) error {
	var errs []error
	if l.Topic != nil && !l.Topic.MatchString(topic) {
		errs = append(errs, fmt.Errorf("%w: topic %q does not match %s", ErrLimit, topic, l.Topic))
	}
	over := func(got, limit int, field, of string) { // parameters of type any would allocate
		if limit > 0 && got > limit {
			if of != "" {
				field += fmt.Sprintf(" %.40q", of)
			}
			errs = append(errs, fmt.Errorf("%w: %s is %d, the limit is %d", ErrLimit, field, got, limit))
		}
	}
	over(Size(msg), l.MessageBytes, "message size in bytes", "")
	over(len(Key(msg)), l.KeyBytes, "key length in bytes", "")
	entries := 0
	for k, v := range msg.Metadata {
		if k == KeyMetadata {
			continue
		}
		entries++
		over(len(k), l.MetadataKeyBytes, "length in bytes of metadata name", k)
		over(len(v), l.MetadataValueBytes, "length in bytes of metadata value of", k)
	}
	over(entries, l.MetadataEntries, "number of metadata entries", "")
	return errors.Join(errs...)
}

// Size is the message's payload together with its ID, key and metadata, in bytes.
func Size(msg *message.Message) int {
	n := len(msg.UUID) + len(msg.Payload)
	for k, v := range msg.Metadata {
		if k != KeyMetadata {
			n += len(k)
		}
		n += len(v)
	}
	return n
}

// CheckText reports an ID, key or metadata with invalid UTF-8 or a NUL byte, which no broker and no database keeps unchanged.
func CheckText(msg *message.Message) error {
	var errs []error
	check := func(s, field, of string) {
		if !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0 {
			errs = append(errs, fmt.Errorf("%w: %s%s %.40q is not UTF-8 without NUL bytes; encode it, for instance as base64", ErrLimit, field, of, s))
		}
	}
	check(msg.UUID, "ID", "")
	for k, v := range msg.Metadata {
		check(k, "metadata name", "")
		check(v, "metadata value of ", k)
	}
	return errors.Join(errs...)
}
