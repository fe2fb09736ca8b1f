package kafka

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/millrace-go/millrace/internal/enum"
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
	return errors.Join(errs...)
}
