package transport

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ErrLimit is wrapped by every error of Limits: the message cannot be carried. Publishing it again does not help; the
// error's text names the field, its value and the limit.
var ErrLimit = errors.New("message exceeds a limit")

// Limits is what one message may carry. A zero field is no limit. Each transport exports its own.
type Limits struct {
	// Topic is the pattern of a topic's name. Default: none.
	Topic *regexp.Regexp
	// MessageBytes is the largest payload together with ID, key and metadata.
	MessageBytes int
	// KeyBytes is the longest key.
	KeyBytes int
	// MetadataEntries is the largest number of metadata entries, the key's not counted.
	MetadataEntries int
	// MetadataKeyBytes is the longest name of a metadata entry.
	MetadataKeyBytes int
	// MetadataValueBytes is the longest value of a metadata entry.
	MetadataValueBytes int
}

// DefaultLimits is what both brokers carry: 10 MB less what a request of Pub/Sub adds, Pub/Sub's longest key, and topic names
// that either broker takes.
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
	over := func(got, limit int, field, of string) { // no arguments of any type: each would be an allocation
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

// CheckText reports ID, key and metadata that no broker and no database carries unchanged: invalid UTF-8, a NUL byte.
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
