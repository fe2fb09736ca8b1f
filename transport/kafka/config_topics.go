package kafka

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/millrace-go/millrace/internal/enum"
	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
)

// Topics says what becomes of topics that are missing.
type Topics struct {
	// Missing is what is done about them. Default: CreateMissing.
	Missing Missing

	// Partitions is the number of partitions of a topic that is created, and so the largest number of subscribers that can
	// share it. It cannot be reduced later. Added partitions are used within a minute. They move keys: later messages of a
	// moved key may be consumed before earlier ones in the old partition. Default: 4.
	Partitions int32

	// ReplicationFactor is how many brokers keep a topic that is created. Production wants 3, with the brokers'
	// min.insync.replicas at 2. Default: the brokers' default.replication.factor.
	ReplicationFactor int16

	// Settings are the settings of a topic that is created, such as retention.ms and cleanup.policy, dead-letter topics
	// included. They do not change a topic that exists. In a file they are one text: name=value,name=value. Default: the brokers'.
	Settings TopicSettings
}

// TopicSettings are settings of a topic by their names. In a file they are one text, as kafka-topics.sh has them:
// retention.ms=604800000,cleanup.policy=compact,delete.
type TopicSettings map[string]string

var settingNames = regexp.MustCompile(`^[a-z]+(\.[a-z]+)+$`)

func (s TopicSettings) String() string {
	all := make([]string, 0, len(s))
	for _, name := range slices.Sorted(maps.Keys(s)) {
		all = append(all, name+"="+s[name])
	}
	return strings.Join(all, ",")
}

// MarshalText writes the settings as a configuration file has them.
func (s TopicSettings) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads them. What has no "=" belongs to the value before it, which has a comma.
func (s *TopicSettings) UnmarshalText(text []byte) error {
	*s = nil
	if len(text) == 0 {
		return nil
	}
	*s = TopicSettings{}
	var last string
	for part := range strings.SplitSeq(string(text), ",") {
		name, value, begins := strings.Cut(strings.TrimSpace(part), "=")
		if !begins && last != "" {
			(*s)[last] += "," + name
			continue
		}
		if _, twice := (*s)[name]; !begins || twice {
			return fmt.Errorf("%q is no setting of its own: want name=value, with commas between, and each name once", part)
		}
		(*s)[name], last = value, name
	}
	return nil
}

// Missing is what is done about a topic that is missing.
type Missing int

const (
	// CreateMissing creates it.
	CreateMissing Missing = iota
	// CheckOnly makes it an error. It is for clusters whose topics are made by an operator or Terraform.
	CheckOnly
)

func (m Missing) String() string {
	switch m {
	case CreateMissing:
		return "CreateMissing"
	case CheckOnly:
		return "CheckOnly"
	}
	return fmt.Sprintf("Missing(%d)", int(m))
}

// MarshalText writes the word that a configuration file has: create_missing or check_only.
func (m Missing) MarshalText() ([]byte, error) { return enum.Text(m, CreateMissing, CheckOnly) }

// UnmarshalText reads it.
func (m *Missing) UnmarshalText(word []byte) error {
	return enum.Read(m, word, CreateMissing, CheckOnly)
}

const (
	defaultPartitions = 4
	// brokersChoice leaves the replication factor to the brokers (KIP-464).
	brokersChoice = -1
)

// WithDefaults returns the configuration with every zero field set to its default.
func (c Topics) WithDefaults() Topics {
	c.Partitions = cmp.Or(c.Partitions, defaultPartitions)
	c.ReplicationFactor = cmp.Or(c.ReplicationFactor, brokersChoice)
	return c
}

func (c Topics) settings() conn.TopicSettings {
	return conn.TopicSettings{Create: c.Missing == CreateMissing, Partitions: c.Partitions, ReplicationFactor: c.ReplicationFactor, Settings: c.Settings}
}

func (c Topics) validate() error {
	var errs []error
	if c.Missing != CreateMissing && c.Missing != CheckOnly {
		errs = append(errs, fmt.Errorf("Config.Topics.Missing is %s: want CreateMissing or CheckOnly", c.Missing))
	}
	if c.Partitions < 1 {
		errs = append(errs, fmt.Errorf("Config.Topics.Partitions is %d: want 1 or more, or 0 for the default of %d", c.Partitions, defaultPartitions))
	}
	if c.ReplicationFactor < 1 && c.ReplicationFactor != brokersChoice {
		errs = append(errs, fmt.Errorf("Config.Topics.ReplicationFactor is %d: want 1 or more, or 0 for the brokers' default", c.ReplicationFactor))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Settings)) {
		if !settingNames.MatchString(name) {
			errs = append(errs, fmt.Errorf("Config.Topics.Settings has %q: want the name of a topic's setting, such as retention.ms", name))
		}
	}
	return errors.Join(errs...)
}
