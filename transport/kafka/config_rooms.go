package kafka

import (
	"log/slog"
	"strconv"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka/internal/backoff"
	"github.com/millrace-go/millrace/transport/kafka/internal/conn"
	"github.com/millrace-go/millrace/transport/kafka/internal/group"
	"github.com/millrace-go/millrace/transport/kafka/internal/lane"
	"github.com/millrace-go/millrace/transport/kafka/internal/meter"
	"github.com/millrace-go/millrace/transport/kafka/internal/produce"
	"github.com/millrace-go/millrace/transport/kafka/internal/txn"
)

// connection is what connecting needs.
func (c Config) connection(requests *meter.Meter) conn.Config {
	return conn.Config{Brokers: c.Brokers, ClientID: c.ClientID, Version: c.Version, Rack: c.Rack, TLS: c.TLS, NewTLS: c.newTLS, SASL: conn.SASL(c.SASL), Dial: c.Dial, Meter: requests}
}

// publishing is what publishing needs.
func (c Config) publishing(log *slog.Logger) produce.Config {
	return produce.Config{
		Compression:   c.Producer.compression(),
		Partitioner:   c.Producer.partitioner(),
		Sticky:        c.Producer.Keyless == Sticky,
		Limits:        c.limits(),
		Timeout:       c.Producer.Timeout,
		Propagator:    c.Propagator,
		MeterProvider: c.MeterProvider,
		Log:           log,
	}
}

// consuming is what consuming needs, but for what is the member's own.
func (c Config) consuming(subscriber transport.SubscriberConfig, topic string, log *slog.Logger) group.Config {
	consumer := c.consumer(subscriber.Consumer)
	g := group.Config{
		SubscriberConfig: subscriber,
		Topic:            topic,
		EventID:          consumer.EventID,
		Policy:           lane.Policy{MaxAttempts: consumer.DeadLetter.MaxAttempts, Retry: backoff.Doubling(consumer.Retry)},
		DeadLetters:      consumer.DeadLetter.Topic,
		Prefetch:         consumer.Prefetch,
		SessionTimeout:   consumer.SessionTimeout,
		Strategies:       consumer.strategies(),
		DrainTimeout:     c.DrainTimeout,
		MeterProvider:    c.MeterProvider,
		TracerProvider:   c.TracerProvider,
		Propagator:       c.Propagator,
		Log:              log,
	}
	if c.Delivery == Transactional {
		g.Transactions = new(c.transactions())
	}
	return g
}

// transactions is what committing needs, but for what is the holder's own.
func (c Config) transactions() txn.Config {
	return txn.Config{
		IDPrefix:       c.Transaction.IDPrefix,
		MaxRecords:     c.Transaction.MaxRecords,
		MaxBytes:       c.Transaction.MaxBytes,
		MaxDelay:       c.Transaction.MaxDelay,
		Timeout:        c.Transaction.Timeout,
		Compression:    c.Producer.compression(),
		Partitioner:    c.Producer.partitioner(),
		Sticky:         c.Producer.Keyless == Sticky,
		MeterProvider:  c.MeterProvider,
		TracerProvider: c.TracerProvider,
		Without:        c.Transaction.without,
	}
}

// notes are the topics of notes: the newest record of a key is all that is read. Compaction soon takes the others, so that
// a takeover reads little. They take a note of transport.MaxNote bytes, whatever the brokers take by default.
func (c Topics) notes() conn.TopicSettings {
	s := c.settings()
	s.Partitions = txn.NotePartitions
	s.Settings = map[string]string{
		"cleanup.policy": "compact", "segment.bytes": "4194304", "max.compaction.lag.ms": "60000", "min.cleanable.dirty.ratio": "0.1",
		"max.message.bytes": strconv.Itoa(conn.DefaultMaxMessageBytes),
	}
	return s
}
