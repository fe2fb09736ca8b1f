package kafka

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/internal/enum"
	"github.com/millrace-go/millrace/transport/kafka/internal/produce"
	"github.com/millrace-go/millrace/transport/kafka/internal/wire"
)

const (
	defaultPublishTimeout = time.Minute
	minPublishTimeout     = time.Second
)

// ProducerConfig configures publishing.
type ProducerConfig struct {
	// Compression of what is sent. Default: LZ4.
	Compression Compression

	// CompressionLevel is how hard Gzip (1 to 9) and Zstd (1 to 22, in four steps) try: a higher level makes smaller batches
	// and costs more time. The others have no levels. Default: 0, the level that the codec recommends.
	CompressionLevel int

	// Partitioner chooses the partition of a message with a key. Every producer of a topic must use the same one, or the
	// order of its keys is lost. Default: Murmur2.
	Partitioner Partitioner

	// PartitionBy chooses the partition of a message with a key in place of Partitioner: a number from 0 to partitions-1. The
	// same key must get the same one each time. It is called for each topic, dead-letter topics too, by many goroutines. Another
	// number is an error that wraps transport.ErrRejected, and the message is not sent. Default: nil, Partitioner chooses.
	PartitionBy func(topic, key string, partitions int) int

	// Keyless chooses the partition of a message without a key. InTurn takes each message to the next partition. Sticky takes whole
	// batches to one partition, so that they are larger. Default: InTurn.
	Keyless Keyless

	// MaxMessageBytes is the largest message: payload, ID, key and metadata. Topics and brokers must take as much, and some
	// for the framing (max.message.bytes). Default: 1,000,000.
	MaxMessageBytes int

	// Timeout is how long a publish call tries when the message's broker is out of reach, unless its context ends
	// before: 1 s or more. The first use of a topic fails sooner in an outage. Default: 1 min.
	Timeout time.Duration
}

// Compression is how batches of messages are compressed. Consumers need not know.
type Compression int

const (
	// LZ4 costs the least time of those that compress.
	LZ4 Compression = iota
	// Zstd makes the smallest batches.
	Zstd
	// Gzip is for topics whose consumers read nothing else; it costs the most time.
	Gzip
	// Snappy is about as quick as LZ4.
	Snappy
	// Uncompressed sends batches as they are.
	Uncompressed
)

func (c Compression) String() string {
	switch c {
	case LZ4:
		return "LZ4"
	case Zstd:
		return "Zstd"
	case Gzip:
		return "Gzip"
	case Snappy:
		return "Snappy"
	case Uncompressed:
		return "Uncompressed"
	}
	return fmt.Sprintf("Compression(%d)", int(c))
}

// MarshalText writes the word that a configuration file has: lz4, zstd, gzip, snappy or uncompressed.
func (c Compression) MarshalText() ([]byte, error) {
	return enum.Text(c, LZ4, Zstd, Gzip, Snappy, Uncompressed)
}

// UnmarshalText reads it.
func (c *Compression) UnmarshalText(word []byte) error {
	return enum.Read(c, word, LZ4, Zstd, Gzip, Snappy, Uncompressed)
}

// highestLevel is 0 where there are no levels.
func (c Compression) highestLevel() int {
	switch c {
	case Gzip:
		return 9
	case Zstd:
		return 22
	case LZ4, Snappy, Uncompressed:
	}
	return 0
}

// compression is how batches are compressed.
func (c ProducerConfig) compression() wire.Compression {
	return wire.Compression{Codec: c.Compression.codec(), Level: c.CompressionLevel}
}

func (c Compression) codec() sarama.CompressionCodec {
	switch c {
	case LZ4:
		return sarama.CompressionLZ4
	case Zstd:
		return sarama.CompressionZSTD
	case Gzip:
		return sarama.CompressionGZIP
	case Snappy:
		return sarama.CompressionSnappy
	case Uncompressed:
	}
	return sarama.CompressionNone
}

// Partitioner chooses the partition of a key. Keyless chooses those of messages without one.
type Partitioner int

const (
	// Murmur2 agrees with the producers of Apache Kafka (Java, Kafka Streams, Connect) and of franz-go.
	Murmur2 Partitioner = iota
	// FNV agrees with sarama's default, and so with watermill-kafka: for topics whose other producers are still there.
	FNV
)

func (p Partitioner) String() string {
	switch p {
	case Murmur2:
		return "Murmur2"
	case FNV:
		return "FNV"
	}
	return fmt.Sprintf("Partitioner(%d)", int(p))
}

// MarshalText writes the word that a configuration file has: murmur2 or fnv.
func (p Partitioner) MarshalText() ([]byte, error) { return enum.Text(p, Murmur2, FNV) }

// UnmarshalText reads it.
func (p *Partitioner) UnmarshalText(word []byte) error { return enum.Read(p, word, Murmur2, FNV) }

// Keyless chooses the partitions of messages without a key, among those that have a leader.
type Keyless int

const (
	// InTurn takes each message to the next partition, so that consumers share even a few messages.
	InTurn Keyless = iota
	// Sticky stays with a partition for 16 KiB of messages, as Apache Kafka's producers do (KIP-794): fewer and larger batches,
	// which cost less and compress better.
	Sticky
)

func (k Keyless) String() string {
	switch k {
	case InTurn:
		return "InTurn"
	case Sticky:
		return "Sticky"
	}
	return fmt.Sprintf("Keyless(%d)", int(k))
}

// MarshalText writes the word that a configuration file has: in_turn or sticky.
func (k Keyless) MarshalText() ([]byte, error) { return enum.Text(k, InTurn, Sticky) }

// UnmarshalText reads it.
func (k *Keyless) UnmarshalText(word []byte) error { return enum.Read(k, word, InTurn, Sticky) }

// WithDefaults returns the configuration with every zero field set to its default.
func (c ProducerConfig) WithDefaults() ProducerConfig {
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, Limits.MessageBytes)
	c.Timeout = cmp.Or(c.Timeout, defaultPublishTimeout)
	return c
}

// partitioner chooses the partitions of keys.
func (c ProducerConfig) partitioner() produce.Partitioner {
	switch {
	case c.PartitionBy != nil:
		return produce.Custom(c.PartitionBy)
	case c.Partitioner == FNV:
		return produce.Hash(produce.FNV)
	}
	return produce.Hash(produce.Murmur2)
}

func (c ProducerConfig) validate() error {
	var errs []error
	if c.Compression < LZ4 || c.Compression > Uncompressed {
		errs = append(errs, fmt.Errorf("Config.Producer.Compression is %s: want LZ4, Zstd, Gzip, Snappy or Uncompressed", c.Compression))
	}
	if highest := c.Compression.highestLevel(); highest == 0 && c.CompressionLevel != 0 {
		errs = append(errs, fmt.Errorf("Config.Producer.CompressionLevel is %d: want 0, because %s has no levels; Gzip and Zstd have", c.CompressionLevel, c.Compression))
	} else if c.CompressionLevel < 0 || c.CompressionLevel > highest {
		errs = append(errs, fmt.Errorf("Config.Producer.CompressionLevel is %d: want 1 to %d for %s, or 0 for its default", c.CompressionLevel, highest, c.Compression))
	}
	if c.Partitioner != Murmur2 && c.Partitioner != FNV {
		errs = append(errs, fmt.Errorf("Config.Producer.Partitioner is %s: want Murmur2 or FNV", c.Partitioner))
	}
	if c.Keyless != InTurn && c.Keyless != Sticky {
		errs = append(errs, fmt.Errorf("Config.Producer.Keyless is %s: want InTurn or Sticky", c.Keyless))
	}
	if c.MaxMessageBytes < 1 {
		errs = append(errs, fmt.Errorf("Config.Producer.MaxMessageBytes is %d: want 1 or more, or 0 for the default of %d", c.MaxMessageBytes, Limits.MessageBytes))
	}
	if c.Timeout < minPublishTimeout {
		errs = append(errs, fmt.Errorf("Config.Producer.Timeout is %s: want %s or more, or 0 for the default of %s", c.Timeout, minPublishTimeout, defaultPublishTimeout))
	}
	return errors.Join(errs...)
}
