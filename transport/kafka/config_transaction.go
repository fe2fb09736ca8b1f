package kafka

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/internal/enum"
	"github.com/millrace-go/millrace/transport/kafka/internal/txn"
)

// Delivery is how the messages of subscribers are settled.
type Delivery int

const (
	// AtLeastOnce commits a message's offset after its ack. What a handler publishes stands for itself: a crash in
	// between repeats it.
	AtLeastOnce Delivery = iota
	// Transactional commits what a handler has published together with the offset of its message, in one Kafka
	// transaction: readers that are read_committed see each output once.
	Transactional
)

func (d Delivery) String() string {
	switch d {
	case AtLeastOnce:
		return "AtLeastOnce"
	case Transactional:
		return "Transactional"
	}
	return fmt.Sprintf("Delivery(%d)", int(d))
}

// MarshalText writes the word that a configuration file has: at_least_once or transactional.
func (d Delivery) MarshalText() ([]byte, error) { return enum.Text(d, AtLeastOnce, Transactional) }

// UnmarshalText reads it.
func (d *Delivery) UnmarshalText(word []byte) error {
	return enum.Read(d, word, AtLeastOnce, Transactional)
}

const (
	defaultTransactionRecords = 1000
	defaultTransactionBytes   = 8 << 20
	defaultTransactionDelay   = 100 * time.Millisecond
	defaultTransactionTimeout = 10 * time.Second
	minTransactionTimeout     = time.Second
	maxTransactionTimeout     = 15 * time.Minute // the brokers' transaction.max.timeout.ms
	defaultIDPrefix           = "millrace"
)

// Transaction configures transactional delivery.
type Transaction struct {
	// MaxRecords is after how many consumed messages a transaction is committed. Default: 1000.
	MaxRecords int
	// MaxBytes is after how many bytes of published messages it is committed. Default: 8 MiB.
	MaxBytes int
	// MaxDelay is how long a finished message waits for others before its transaction is committed: the latency that
	// transactions add under light load. Default: 100 ms.
	MaxDelay time.Duration
	// Timeout is how long the brokers wait before they abort the transaction of a dead process. Until then its outputs
	// block read_committed readers. 1 s to 15 min, within the brokers' bounds. Default: 10 s.
	Timeout time.Duration
	// IDPrefix is the beginning of the transactional IDs, "<prefix>-<consumer>-<topic>-<instance>". An ACL on the IDs
	// names it. Default: "millrace".
	IDPrefix string

	without txn.Omission // of tests
}

// WithDefaults returns the configuration with every zero field set to its default.
func (c Transaction) WithDefaults() Transaction {
	c.MaxRecords = cmp.Or(c.MaxRecords, defaultTransactionRecords)
	c.MaxBytes = cmp.Or(c.MaxBytes, defaultTransactionBytes)
	c.MaxDelay = cmp.Or(c.MaxDelay, defaultTransactionDelay)
	c.Timeout = cmp.Or(c.Timeout, defaultTransactionTimeout)
	c.IDPrefix = cmp.Or(c.IDPrefix, defaultIDPrefix)
	return c
}

func (c Transaction) validate() error {
	var errs []error
	wrong := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("Config.Transaction.%s is %w", field, fmt.Errorf(format, args...)))
	}
	if c.MaxRecords < 1 {
		wrong("MaxRecords", "%d: want 1 or more, or 0 for the default of %d", c.MaxRecords, defaultTransactionRecords)
	}
	if c.MaxBytes < 1 {
		wrong("MaxBytes", "%d: want 1 or more, or 0 for the default of %d", c.MaxBytes, defaultTransactionBytes)
	}
	if c.Timeout < minTransactionTimeout || c.Timeout > maxTransactionTimeout {
		wrong("Timeout", "%s: want %s to %s, or 0 for the default of %s", c.Timeout, minTransactionTimeout, maxTransactionTimeout, defaultTransactionTimeout)
	}
	if c.MaxDelay <= 0 || c.MaxDelay > c.Timeout/2 {
		wrong("MaxDelay", "%s: want more than 0 and at most half of Timeout (%s), or 0 for the default of %s", c.MaxDelay, c.Timeout, defaultTransactionDelay)
	}
	if !clientIDs.MatchString(c.IDPrefix) {
		wrong("IDPrefix", "%q: want 1 to 249 letters, digits, \".\", \"_\" and \"-\"", c.IDPrefix)
	}
	return errors.Join(errs...)
}
