package kafka

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/internal/enum"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

// The bounds and our defaults.
const (
	defaultPrefetch    = 500
	defaultMaxAttempts = 10
	defaultRetryMin    = 100 * time.Millisecond
	defaultRetryMax    = time.Minute

	defaultSessionTimeout = 10 * time.Second
	minSessionTimeout     = 6 * time.Second // the brokers' group.min.session.timeout.ms
	maxSessionTimeout     = 30 * time.Minute
)

// ConsumerConfig configures a consumer: its group and what becomes of its messages.
type ConsumerConfig struct {
	// DeadLetter is where messages go that failed too often or were rejected. Default: none, a message is retried for ever,
	// and a rejected one goes to transport.DeadLetterTopic.
	DeadLetter DeadLetter

	// EventID says where the event's ID is in records that foreign producers write: EventIDFromHeader, EventIDFromJSON or
	// EventIDFromOffset; in a file, header:NAME, json:PATH or offset. Consumers of one topic usually want the same. Default:
	// the header in which Millrace and watermill-kafka write it. Under a claim a record without an ID becomes a dead letter.
	EventID transport.EventIDSource

	// Retry is how long a nacked message waits before it is delivered again, unless Delivery.RetryAfter says.
	Retry Retry

	// Prefetch is how many records of a partition are held beyond SubscriberConfig.Concurrency: those that are ready for
	// handlers, and those blocked by one that is being retried. A partition with more unfinished records is paused.
	// Default: 500.
	Prefetch int

	// StartAt is where a new group begins to read. Default: Oldest.
	StartAt StartAt

	// Assignment is how the members of the group share the partitions. All members must offer the same one, here or in Join.
	// Default: CooperativeSticky.
	Assignment Assignment

	// Join are assignments that this member offers beside Assignment, so that it can join a group whose members use another
	// one. watermill-kafka and sarama use Range. The group changes to Assignment when the last member that does not offer it
	// has left. A member with Join gives up all its partitions at each rebalance. So replace the members twice, one by one:
	// first with Join, then without. Default: none.
	Join []Assignment

	// InstanceID makes this process a static member: if it restarts within SessionTimeout, it keeps its partitions without
	// a rebalance. The ID must be unique in the group and stable over restarts, like the name of a StatefulSet's pod. If
	// the process does not return, its partitions wait for SessionTimeout. Default: "", a dynamic member.
	InstanceID string

	// SessionTimeout is how long the group waits for a sign of life: the partitions of a killed process go to others
	// within it. 6 s to 30 min, within the brokers' bounds. Default: 10 s.
	SessionTimeout time.Duration
}

// DeadLetter is a consumer's dead-letter topic.
type DeadLetter struct {
	// Topic is the topic's name. Subscribe creates or checks the topic, as Config.Topics says. A consumer of the dead
	// letters must not have the same dead-letter topic: give it an entry of its own in Config.Consumers. Default: "",
	// none.
	Topic string
	// MaxAttempts is the number of deliveries after which a message goes there. Each process counts in memory, so the
	// count begins anew when the partition goes to another process. Default: 10.
	MaxAttempts int
}

// Retry is a backoff: the wait doubles from Min to Max with the attempts of a message.
type Retry struct {
	// Min is the first wait. Default: 100 ms.
	Min time.Duration
	// Max is the longest. Default: 1 min.
	Max time.Duration
}

// StartAt is where a group without an offset begins.
type StartAt int

const (
	// Oldest is the first message that the topic still holds.
	Oldest StartAt = iota
	// Newest is what is published after the first Subscribe of the group to the topic has returned. What is published before, also
	// between topic and group being created, is not delivered. Partitions that the topic gets later are read from their beginning, and so
	// are topics that come to match a pattern later.
	Newest
)

func (s StartAt) String() string {
	switch s {
	case Oldest:
		return "Oldest"
	case Newest:
		return "Newest"
	}
	return fmt.Sprintf("StartAt(%d)", int(s))
}

// MarshalText writes the word that a configuration file has: oldest or newest.
func (s StartAt) MarshalText() ([]byte, error) { return enum.Text(s, Oldest, Newest) }

// UnmarshalText reads it.
func (s *StartAt) UnmarshalText(word []byte) error { return enum.Read(s, word, Oldest, Newest) }

// Assignment is how the members of a group share partitions.
type Assignment int

const (
	// CooperativeSticky moves as few partitions as it can, while the others go on.
	CooperativeSticky Assignment = iota
	// Range stops all members and shares out anew, neighbouring partitions to one member.
	Range
	// RoundRobin stops all members and shares out anew, in turn.
	RoundRobin
)

func (a Assignment) String() string {
	switch a {
	case CooperativeSticky:
		return "CooperativeSticky"
	case Range:
		return "Range"
	case RoundRobin:
		return "RoundRobin"
	}
	return fmt.Sprintf("Assignment(%d)", int(a))
}

// MarshalText writes the word that a configuration file has: cooperative_sticky, range or round_robin.
func (a Assignment) MarshalText() ([]byte, error) {
	return enum.Text(a, CooperativeSticky, Range, RoundRobin)
}

// UnmarshalText reads it.
func (a *Assignment) UnmarshalText(word []byte) error {
	return enum.Read(a, word, CooperativeSticky, Range, RoundRobin)
}

// strategies are what the consumer's members offer, the preferred one first.
func (c ConsumerConfig) strategies() []sarama.BalanceStrategy {
	strategies := []sarama.BalanceStrategy{c.Assignment.strategy()}
	for _, other := range c.Join {
		strategies = append(strategies, other.strategy())
	}
	return strategies
}

func (a Assignment) valid() bool { return a >= CooperativeSticky && a <= RoundRobin }

func (a Assignment) strategy() sarama.BalanceStrategy {
	switch a {
	case Range:
		return sarama.NewBalanceStrategyRange()
	case RoundRobin:
		return sarama.NewBalanceStrategyRoundRobin()
	case CooperativeSticky:
	}
	return sarama.NewBalanceStrategyCooperativeSticky()
}

// WithDefaults returns the configuration with every zero field set to its default.
func (c ConsumerConfig) WithDefaults() ConsumerConfig {
	if c.DeadLetter.Topic != "" {
		c.DeadLetter.MaxAttempts = cmp.Or(c.DeadLetter.MaxAttempts, defaultMaxAttempts)
	}
	c.Retry.Min = cmp.Or(c.Retry.Min, defaultRetryMin)
	c.Retry.Max = cmp.Or(c.Retry.Max, max(defaultRetryMax, c.Retry.Min))
	c.Prefetch = cmp.Or(c.Prefetch, defaultPrefetch)
	c.SessionTimeout = cmp.Or(c.SessionTimeout, defaultSessionTimeout)
	return c
}

var instanceIDs = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}$`)

// validate reports everything that is wrong, naming fields as those of path.
func (c ConsumerConfig) validate(path string) error {
	var errs []error
	wrong := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s.%s is %w", path, field, fmt.Errorf(format, args...)))
	}
	switch {
	case c.DeadLetter.Topic == "" && c.DeadLetter.MaxAttempts != 0:
		wrong("DeadLetter.MaxAttempts", "%d without a DeadLetter.Topic: want a topic, or 0", c.DeadLetter.MaxAttempts)
	case c.DeadLetter.Topic != "" && c.DeadLetter.MaxAttempts < 1:
		wrong("DeadLetter.MaxAttempts", "%d: want 1 or more, or 0 for the default of %d", c.DeadLetter.MaxAttempts, defaultMaxAttempts)
	}
	if c.DeadLetter.Topic != "" {
		if err := wire.CheckTopic(c.DeadLetter.Topic); err != nil {
			wrong("DeadLetter.Topic", "%q: %w", c.DeadLetter.Topic, err)
		}
	}
	if err := c.EventID.Validate(EventIDFromOffset(), wire.IDHeader); err != nil {
		wrong("EventID", "%w", err)
	}
	if c.Retry.Min <= 0 {
		wrong("Retry.Min", "%s: want more than 0, or 0 for the default of %s", c.Retry.Min, defaultRetryMin)
	}
	if c.Retry.Max < c.Retry.Min {
		wrong("Retry.Max", "%s: want Retry.Min (%s) or more, or 0 for the default of %s", c.Retry.Max, c.Retry.Min, defaultRetryMax)
	}
	if c.Prefetch < 1 {
		wrong("Prefetch", "%d: want 1 or more, or 0 for the default of %d", c.Prefetch, defaultPrefetch)
	}
	if c.StartAt != Oldest && c.StartAt != Newest {
		wrong("StartAt", "%s: want Oldest or Newest", c.StartAt)
	}
	if !c.Assignment.valid() {
		wrong("Assignment", "%s: want CooperativeSticky, Range or RoundRobin", c.Assignment)
	}
	for i, other := range c.Join {
		if !other.valid() || other == c.Assignment || slices.Contains(c.Join[:i], other) {
			wrong("Join", "%s: want CooperativeSticky, Range and RoundRobin, each once, and not Assignment (%s)", c.Join, c.Assignment)
			break
		}
	}
	if c.InstanceID != "" && !instanceIDs.MatchString(c.InstanceID) {
		wrong("InstanceID", "%q: want 1 to 200 letters, digits, \".\", \"_\" and \"-\", not starting with a dot", c.InstanceID)
	}
	if c.SessionTimeout < minSessionTimeout || c.SessionTimeout > maxSessionTimeout {
		wrong("SessionTimeout", "%s: want %s to %s, or 0 for the default of %s", c.SessionTimeout, minSessionTimeout, maxSessionTimeout, defaultSessionTimeout)
	}
	return errors.Join(errs...)
}
