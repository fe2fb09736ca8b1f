package kafka

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/millrace/internal/enum"
)

const (
	defaultPublishTimeout = time.Minute
	minPublishTimeout     = time.Second
)

// ProducerConfig configures publishing.
type ProducerConfig struct {
	// Compression of what is sent. Default: LZ4.
	Compression Compression

	// Partitioner chooses the partition of a message with a key. Every producer of a topic must use the same one, or the
	// order of its keys is lost. Default: Murmur2.
	Partitioner Partitioner

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
	// Uncompressed sends batches as they are.
	Uncompressed
)

func (c Compression) String() string {
	switch c {
	case LZ4:
		return "LZ4"
	case Zstd:
		return "Zstd"
	case Uncompressed:
		return "Uncompressed"
	}
	return fmt.Sprintf("Compression(%d)", int(c))
}

// MarshalText writes the word that a configuration file has: lz4, zstd or uncompressed.
func (c Compression) MarshalText() ([]byte, error) { return enum.Text(c, LZ4, Zstd, Uncompressed) }

// UnmarshalText reads it.
func (c *Compression) UnmarshalText(word []byte) error {
	return enum.Read(c, word, LZ4, Zstd, Uncompressed)
}

func (c Compression) codec() sarama.CompressionCodec {
	switch c {
	case LZ4:
		return sarama.CompressionLZ4
	case Zstd:
		return sarama.CompressionZSTD
	case Uncompressed:
	}
	return sarama.CompressionNone
}

// Partitioner chooses the partition of a key. Messages without a key go to any.
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

// WithDefaults returns the configuration with every zero field set to its default.
func (c ProducerConfig) WithDefaults() ProducerConfig {
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, Limits.MessageBytes)
	c.Timeout = cmp.Or(c.Timeout, defaultPublishTimeout)
	return c
}

func (c ProducerConfig) validate() error {
	var errs []error
	if c.Compression < LZ4 || c.Compression > Uncompressed {
		errs = append(errs, fmt.Errorf("Config.Producer.Compression is %s: want LZ4, Zstd or Uncompressed", c.Compression))
	}
	if c.Partitioner != Murmur2 && c.Partitioner != FNV {
		errs = append(errs, fmt.Errorf("Config.Producer.Partitioner is %s: want Murmur2 or FNV", c.Partitioner))
	}
	if c.MaxMessageBytes < 1 {
		errs = append(errs, fmt.Errorf("Config.Producer.MaxMessageBytes is %d: want 1 or more, or 0 for the default of %d", c.MaxMessageBytes, Limits.MessageBytes))
	}
	if c.Timeout < minPublishTimeout {
		errs = append(errs, fmt.Errorf("Config.Producer.Timeout is %s: want %s or more, or 0 for the default of %s", c.Timeout, minPublishTimeout, defaultPublishTimeout))
	}
	return errors.Join(errs...)
}
