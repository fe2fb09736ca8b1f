package framework

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/framework/internal/payload"
	"github.com/millrace-go/millrace/internal/enum"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/retry"
	"github.com/millrace-go/millrace/transport"
)

// Refusal says what happens to an event whose type or version its handler does not know.
type Refusal int

const (
	// Wait keeps the event until a process that knows its version handles it, as when consumers are deployed after producers.
	// It is retried after 1 s at first, and every minute in the end, and counts no attempt.
	Wait Refusal = iota
	// Dead makes a dead letter of the event at once.
	Dead
	// Ignore counts the event as processed, without effect.
	Ignore
)

func (r Refusal) String() string {
	switch r {
	case Wait:
		return "Wait"
	case Dead:
		return "Dead"
	case Ignore:
		return "Ignore"
	}
	return fmt.Sprintf("Refusal(%d)", int(r))
}

// MarshalText writes the word that a configuration file has: wait, dead or ignore.
func (r Refusal) MarshalText() ([]byte, error) { return enum.Text(r, Wait, Dead, Ignore) }

// UnmarshalText reads that word.
func (r *Refusal) UnmarshalText(word []byte) error { return enum.Read(r, word, Wait, Dead, Ignore) }

// UnknownVersionError refuses an event whose type or version its handler does not know. Handler.UnknownVersions decides what
// happens to the event. Deploy a version of the service that knows it.
type UnknownVersionError struct {
	Type    string
	Version int
	Known   string // the versions that the handler knows: "version 1 or 2 of OrderPlaced"
}

func (e *UnknownVersionError) Error() string {
	return fmt.Sprintf("the event is version %d of %s, and this handler knows only %s: deploy a process that knows it, or set Config.Handlers[NAME].UnknownVersions (handlers.NAME.unknown_versions)",
		e.Version, cmp.Or(e.Type, "a type without a name"), e.Known)
}

func isUnknown(err error) bool { return errors.As(err, new(*UnknownVersionError)) }

// refused handles an event that cannot be decoded, and returns the handler's error. UnknownVersions decides about an unknown
// version.
func (s *Service) refused(handler string, msg *message.Message, err error) error {
	if !isUnknown(err) {
		return claim.Permanent(err)
	}
	ctx := msg.Context()
	switch s.cfg.Handlers[handler].UnknownVersions {
	case Dead:
		return claim.Permanent(err)
	case Ignore:
		if transport.UnitFrom(ctx) == nil {
			return err // the rule that claimConfig adds ignores it
		}
		s.log.InfoContext(ctx, "event of an unknown version is ignored", "event_id", msg.UUID, "handler", handler, "error", err)
		return nil
	case Wait:
	}
	after := payload.Patience(msg.UUID, time.Now())
	transport.DeliveryFrom(ctx).RetryAfter(after)
	return payload.Wait(err, after)
}

// claimConfig returns the handler's settings for its claim. If the handler ignores unknown versions, a rule for them comes first.
func (h Handler) claimConfig() claim.HandlerConfig {
	c := h.HandlerConfig
	if h.UnknownVersions == Ignore {
		c.Retry = append(retry.Policy{{Error: isUnknown, Ignore: true}}, c.Retry...)
	}
	return c
}

// TopicOption is an option of Topic: EventType or Upcast.
type TopicOption func(*topicConfig)

type topicConfig struct {
	kind    payload.Kind // zero: from the name of the Go type
	upcasts []payload.Step
	err     error
}

// EventType sets the type and the version of a topic's events, instead of those in the name of the Go type. Consumers in other
// programs can then use a Go type of another name. The version is 1 to 999,999,999.
func EventType(name string, version int) TopicOption {
	return func(c *topicConfig) {
		if name == "" || version < 1 || version > payload.MaxVersion {
			c.err = fmt.Errorf("EventType(%q, %d): want a name, and a version of 1 to %d", name, version, payload.MaxVersion)
		}
		c.kind = payload.Kind{Name: name, Version: version}
	}
}

// Upcast converts events of an older version to a later one. It calls fn for each such event when the event is handled, so it
// also converts delayed events, retried events and dead letters. Upcasts chain: with one from 1 to 2 and one from 2 to 3, an
// event of version 1 goes through both, and the last one must return the topic's type. fn must depend on nothing but the event.
// It is called concurrently. If it returns an error, the event becomes a dead letter.
func Upcast[From, To any](from, to int, fn func(From) (To, error)) TopicOption {
	u := payload.Upcast(from, to, fn)
	return func(c *topicConfig) { c.upcasts = append(c.upcasts, u) }
}
