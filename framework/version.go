package framework

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/millrace-go/millrace/internal/enum"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/retry"
	"github.com/millrace-go/millrace/transport"
)

// Refusal is what becomes of an event whose type or version its handler does not know.
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

// UnmarshalText reads it.
func (r *Refusal) UnmarshalText(word []byte) error { return enum.Read(r, word, Wait, Dead, Ignore) }

// UnknownVersionError refuses an event whose type or version its handler does not know. Handler.UnknownVersions says what
// becomes of the event. Deploy a version of the service that knows it.
type UnknownVersionError struct {
	Type    string
	Version int
	Known   string // what the handler knows: "version 1 or 2 of OrderPlaced"
}

func (e *UnknownVersionError) Error() string {
	return fmt.Sprintf("the event is version %d of %s, and this handler knows only %s: deploy a process that knows it, or set Config.Handlers[NAME].UnknownVersions (handlers.NAME.unknown_versions)",
		e.Version, cmp.Or(e.Type, "a type without a name"), e.Known)
}

func isUnknown(err error) bool { return errors.As(err, new(*UnknownVersionError)) }

// waitError says when to retry the event.
type waitError struct {
	error
	after time.Duration
}

func (e waitError) Unwrap() error             { return e.error }
func (e waitError) RetryAfter() time.Duration { return e.after }

// refused returns what the handler answers when it cannot decode an event. For an unknown version its policy decides.
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
			return err // which a rule ignores: see claimConfig
		}
		s.log.InfoContext(ctx, "event of an unknown version is ignored", "event_id", msg.UUID, "handler", handler, "error", err)
		return nil
	case Wait:
	}
	after := patience(msg.UUID, time.Now())
	transport.DeliveryFrom(ctx).RetryAfter(after)
	return waitError{err, after}
}

// patience is how long an event of an unknown version waits for its next retry: half of its age, so that many events that wait
// for long cost little.
func patience(id string, now time.Time) time.Duration {
	const least, most = time.Second, time.Minute
	parsed, err := uuid.Parse(id)
	if err != nil || parsed.Version() != 7 {
		return most
	}
	return min(max(now.Sub(time.Unix(parsed.Time().UnixTime()))/2, least), most)
}

// claimConfig returns the handler's settings for its claim. If it ignores unknown versions, a rule for them comes first.
func (h Handler) claimConfig() claim.HandlerConfig {
	c := h.HandlerConfig
	if h.UnknownVersions == Ignore {
		c.Retry = append(retry.Policy{{Error: isUnknown, Ignore: true}}, c.Retry...)
	}
	return c
}

// kind is the type and the version of an event.
type kind struct {
	name    string // "" if the event does not name it
	version int
	any     bool // a topic of all types and versions
}

// versionedType and versionedPackage are names with a version: OrderPlacedV2, and shop.v2.OrderPlaced.
var (
	versionedType    = regexp.MustCompile(`^(.*[a-z0-9])V([1-9][0-9]{0,5})$`)
	versionedPackage = regexp.MustCompile(`^(.*\.)?v([1-9][0-9]{0,5})\.(.+)$`)
)

// kindOf reads type and version from the name of a Go type, or of a protobuf message.
func kindOf(t reflect.Type, protobuf string) kind {
	if t == raw {
		return kind{version: 1, any: true}
	}
	if m := versionedPackage.FindStringSubmatch(protobuf); m != nil {
		return kind{name: m[1] + m[3], version: number(m[2])}
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name := cmp.Or(protobuf, t.Name())
	if m := versionedType.FindStringSubmatch(name); m != nil {
		return kind{name: m[1], version: number(m[2])}
	}
	return kind{name: name, version: 1}
}

func number(digits string) int {
	n, _ := strconv.Atoi(digits) // which are digits
	return n
}

// kindFrom reads the kind of an event from its metadata.
func kindFrom(metadata message.Metadata) (kind, error) {
	k := kind{name: metadata.Get(TypeMetadata), version: 1}
	text := metadata.Get(VersionMetadata)
	if text == "" {
		return k, nil
	}
	var err error
	if k.version, err = strconv.Atoi(text); err != nil || k.version < 1 {
		return k, fmt.Errorf("metadata %s is %q: want a number, 1 or more", VersionMetadata, text)
	}
	return k, nil
}

// TopicOption is an option of Topic: EventType or Upcast.
type TopicOption func(*topicConfig)

type topicConfig struct {
	kind    kind
	upcasts []upcast
	err     error
}

// EventType sets the type and the version of a topic's events, instead of those in the name of the Go type. Consumers in other
// programs can then use a Go type of another name. The version is 1 or more.
func EventType(name string, version int) TopicOption {
	return func(c *topicConfig) {
		if name == "" || version < 1 {
			c.err = fmt.Errorf("EventType(%q, %d): want a name, and a version of 1 or more", name, version)
		}
		c.kind = kind{name: name, version: version}
	}
}

// upcast is a step from one version to a later one.
type upcast struct {
	from, to int
	in, out  reflect.Type
	protobuf string // the name of in's message, "" for JSON
	decode   func(*message.Message) (any, error)
	apply    func(any) (any, error)
	err      error
}

// Upcast says how an event of an older version becomes one of a later version: fn is called for each such event when it is
// handled, so it also reaches events that were delayed, that are retried, and that were dead letters. Upcasts chain: with one from 1
// to 2 and one from 2 to 3, an event of version 1 goes through both, and the last one must return the topic's type. fn depends
// on nothing but the event, and is called concurrently. If it returns an error, the event becomes a dead letter.
func Upcast[From, To any](from, to int, fn func(From) (To, error)) TopicOption {
	f, err := formatOf[From]()
	u := upcast{
		from: from, to: to, in: reflect.TypeFor[From](), out: reflect.TypeFor[To](), protobuf: f.name,
		decode: func(msg *message.Message) (any, error) { return f.decode(msg) },
		apply: func(event any) (any, error) {
			older, _ := event.(From) // as chain has checked
			return fn(older)
		},
	}
	switch {
	case err != nil:
		u.err = fmt.Errorf("upcast from %d to %d: %w", from, to, err)
	case from < 1 || to <= from:
		u.err = fmt.Errorf("upcast from %d to %d: want a version of 1 or more, and a later one", from, to)
	case fn == nil:
		u.err = fmt.Errorf("upcast from %d to %d: the function is nil", from, to)
	}
	return func(c *topicConfig) { c.upcasts = append(c.upcasts, u) }
}

// chain checks that upcasts lead to the version and the type of their topic, each from the type that the one before returns.
func chain(upcasts []upcast, version int, event reflect.Type) (map[int]upcast, error) {
	var errs []error
	steps := make(map[int]upcast, len(upcasts))
	for _, u := range upcasts {
		if _, twice := steps[u.from]; twice {
			errs = append(errs, fmt.Errorf("two upcasts lead from version %d: want one", u.from))
		}
		errs = append(errs, u.err)
		steps[u.from] = u
	}
	for _, from := range slices.Sorted(maps.Keys(steps)) {
		u := steps[from]
		next, more := steps[u.to]
		want := next.in
		if u.to == version {
			want = event
		}
		switch {
		case from >= version:
			errs = append(errs, fmt.Errorf("upcast from %d to %d: the topic's own version is %d: want steps from earlier ones", from, u.to, version))
		case u.to != version && !more:
			errs = append(errs, fmt.Errorf("upcast from %d to %d: nothing leads from version %d to the topic's version, %d", from, u.to, u.to, version))
		case u.out != want:
			errs = append(errs, fmt.Errorf("upcast from %d to %d returns %s: want %s, which version %d is here", from, u.to, u.out, want, u.to))
		}
	}
	return steps, errors.Join(errs...)
}

// known describes the versions that the topic can decode.
func (t *TopicOf[T]) known() string {
	var versions []string
	for _, version := range append(slices.Sorted(maps.Keys(t.older)), t.kind.version) {
		versions = append(versions, strconv.Itoa(version))
	}
	return fmt.Sprintf("version %s of %s", strings.Join(versions, " or "), cmp.Or(t.kind.name, "events without a type"))
}
